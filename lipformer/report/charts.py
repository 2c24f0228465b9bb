"""The curves: one chart a quantity, all runs in the same axes."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, Line

from lipformer.report.style import empty_plot, hover
from lipformer.report.thinning import thin
from lipformer.runs.readings import layer_series
from lipformer.runs.record import RunRecord, Series, tasks_of
from lipformer.tasks import Task

HEIGHT = 270
POINTS = 1_000
"""Of a curve at most."""
ALL_POINTS = 250_000
"""Of a page at most; more runs have fewer points each."""
LARGEST = 1e250
"""What is drawn at the most, as in the figures."""
DECADES = 1.3
"""A quantity that spans more has a logarithmic axis."""

Pick = Callable[[RunRecord], Series | None]


@dataclass(frozen=True)
class Chart:
    """A quantity over the course of training.

    Attributes:
        key: its name in the page.
        title: in the reader's words.
        about: a line under the title.
        curve: (what it is, where it stands).
        pale: a second one of each run, for comparison.
        scale: of the y axis; ``auto`` looks at the values.
    """

    key: str
    title: str
    about: str
    curve: tuple[str, Pick]
    pale: tuple[str, Pick] | None = None
    scale: Literal["auto", "linear", "log"] = "auto"


def metric(*names: str) -> Pick:
    """Pick the first of these metrics that a run has."""
    return lambda record: next((record.series[name] for name in names if name in record.series), None)


def over_layers(quantity: str, reduce: np.ufunc) -> Pick:
    """Pick the smallest (``np.minimum``) or largest (``np.maximum``) of a quantity over all layers."""

    def pick(record: RunRecord) -> Series | None:
        layers = list(layer_series(record, quantity).values())
        if not layers:
            return None
        steps, tokens, values = (
            np.concatenate([getattr(layer, name) for layer in layers]) for name in ("steps", "tokens", "values")
        )
        order = np.argsort(steps, kind="stable")
        unique, first = np.unique(steps[order], return_index=True)
        return Series(unique, tokens[order][first], reduce.reduceat(values[order], first))

    return pick


def trunk_certificate(record: RunRecord) -> Series | None:
    """Pick the certified constant of the trunk, in the run's norm."""
    return next((series for name, series in record.series.items() if name.startswith("certificate/trunk/")), None)


def loss_charts(task: Task, suffix: str = "") -> tuple[Chart, Chart]:
    """Return the charts of a task's objective; a suffix of the keys tells those of several tasks apart."""
    about = task.objective.long
    return (
        Chart(f"train{suffix}", "Training loss", about, ("train", metric(task.metric("train")))),
        Chart(f"val{suffix}", "Validation loss", about, ("valid", metric(task.metric("val")))),
    )


CHARTS = (
    Chart(
        "gradient_norm",
        "Gradient norm",
        "of all parameters; pale: after clipping",
        ("before clipping", metric("stability/total/gradient_norm", "train/gradient_norm")),
        ("after clipping", metric("stability/total/gradient_norm_clipped")),
    ),
    Chart("lr", "Learning rate", "as the schedule has it", ("learning rate", metric("train/lr")), scale="linear"),
    Chart(
        "update_ratio",
        "Update ratio",
        "norm of a step's update over that of the parameters",
        ("update ratio", metric("stability/total/update_ratio")),
    ),
    Chart(
        "entropy_share",
        "Attention entropy",
        "share of the largest possible, mean of all layers; pale: the lowest layer",
        ("mean of layers", metric("stability/total/entropy_share")),
        ("lowest layer", metric("stability/total/entropy_share_lowest_layer")),
        scale="linear",
    ),
    Chart(
        "range_ratio",
        "Output range of the trunk",
        "over the range of its input",
        ("range ratio", metric("stability/trunk/range_ratio")),
    ),
    Chart(
        "lipschitz",
        "Lipschitz constant of the trunk",
        "measured at a few sentences, from below; pale: the certificate, from above",
        ("measured", metric("stability/trunk/local_lipschitz")),
        ("certified", trunk_certificate),
        scale="log",
    ),
    Chart(
        "branch_gain",
        "Branch gain",
        "size of what a branch adds over that of its skip, lowest of all residuals; pale: highest",
        ("lowest", over_layers("branch_gain", np.minimum)),
        ("highest", over_layers("branch_gain", np.maximum)),
    ),
)


def draw_charts(records: Sequence[RunRecord], names: Sequence[str]) -> list[dict[str, Any]]:
    """Lay out the charts that at least one run has something for.

    Args:
        records: of the runs.
        names: of the runs, for the reader.

    Returns:
        A dictionary a chart: ``key``, ``title``, ``about``, ``log`` (the scale of the y axis), ``notes`` (what curves
        cannot show), ``thinned`` and ``curves``, each with its ``run`` (number), ``what`` it is, whether it is
        ``pale``, and ``steps``, ``tokens`` and ``values``, the first two as differences, which are shorter to write.
    """
    losses = [loss_charts(task, f"_{number}" if number else "") for number, task in enumerate(tasks_of(records))]
    charts = [*itertools.chain(*losses), *CHARTS]
    limit = max(20, min(POINTS, ALL_POINTS // (len(records) * sum(1 + (chart.pale is not None) for chart in charts))))
    drawn = [draw_chart(chart, records, names, limit) for chart in charts]
    return [chart for chart in drawn if chart is not None]


def draw_chart(chart: Chart, records: Sequence[RunRecord], names: Sequence[str], limit: int) -> dict[str, Any] | None:
    """Lay out one chart with at most `limit` points a curve; None where no run has something for it."""
    kinds = [kind for kind in (chart.pale, chart.curve) if kind is not None]  # the pale ones lie below
    curves: list[dict[str, Any]] = []
    notes, every, thinned = [], [np.zeros(0)], False
    for what, pick in kinds:
        for number, record in enumerate(records):
            series = pick(record)
            if series is None:
                continue
            values = drawable(series.values)
            if not np.isfinite(values).any():
                notes.append(f"{names[number]}, {what}: {plain(values[-1])} at every step")
                continue
            kept = thin(values, limit)
            thinned |= len(kept) < len(values)
            every.append(values)
            curves.append(
                {
                    "run": number,
                    "what": what,
                    "pale": what != chart.curve[0],
                    "steps": _differences(series.steps[kept]),
                    "tokens": _differences(series.tokens[kept]),
                    "values": [plain(value) for value in values[kept]],
                }
            )
    if not curves and not notes:
        return None
    return {
        "key": chart.key,
        "title": chart.title,
        "about": chart.about,
        "log": _is_log(np.concatenate(every), chart.scale),
        "notes": notes,
        "thinned": thinned,
        "curves": curves,
    }


def empty_chart(*, log: bool) -> dict[str, Any]:
    """Return a chart without curves, which the page's script copies for each quantity."""
    plot = empty_plot(log=log, height=HEIGHT)
    # Replaced in the page; without a curve Bokeh warns, here and there.
    plot.add_glyph(ColumnDataSource({"x": [0, 1], "y": [1, 10]}), Line(x="x", y="y", line_alpha=0))
    number = [("value", "@values{%.4g}")]
    for what, told in (("curve", number), ("pale", number), ("cross", [("becomes", "@what")])):
        plot.add_tools(hover(what, [("run", "$name"), *told, ("step", "@steps{0,0}"), ("tokens", "@tokens{0,0}")]))
    return dict(json_item(plot))


def extent(records: Sequence[RunRecord]) -> dict[str, float]:
    """Return how far the x axes go, in ``tokens`` (0 where no run counts them) and ``steps``."""
    ends = {}
    for name in ("tokens", "steps"):
        every = [getattr(series, name) for record in records for series in record.series.values()]
        values = np.concatenate([*every, np.zeros(1)])
        ends[name] = float(values[np.isfinite(values)].max())
    return ends


def plain(value: float) -> float | str:
    """A number for JSON, which has neither infinity nor nan, in the digits that a reader sees."""
    rounded = float(f"{value:.5g}")  # of the largest, infinity
    return rounded if np.isfinite(rounded) else str(rounded)


def drawable(values: np.ndarray) -> np.ndarray:
    """Take what is too large for an axis or a scale of colours, which compute with it, as infinite."""
    return np.where(np.abs(values) > LARGEST, np.copysign(np.inf, values), values)


def _differences(values: np.ndarray) -> list[int]:
    """The first, and from each to the next; empty where they are not known."""
    return [] if np.isnan(values).any() else np.diff(values.round(), prepend=0).astype(int).tolist()


def _is_log(values: np.ndarray, scale: str) -> bool:
    finite = values[np.isfinite(values)]
    if not len(finite) or finite.min() <= 0:
        return scale == "log" and bool((finite > 0).any())
    return scale == "log" or (scale == "auto" and bool(finite.max() > 10**DECADES * finite.min()))
