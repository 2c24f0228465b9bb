"""The curves: one chart a quantity, all runs in the same axes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, HoverTool, Line, Plot, Scatter

from lipformer.report.style import empty_plot, run_style
from lipformer.report.thinning import thin
from lipformer.run_record import RunRecord, Series, layer_series

HEIGHT = 270
POINTS = 1_000
"""Of a curve at most."""
ALL_POINTS = 250_000
"""Of a page at most; more runs have fewer points each."""
DECADES = 1.3
"""A quantity that spans more has a logarithmic axis."""
DOTTED = 30
"""A curve of at most so many values shows each as a dot."""

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


CHARTS = (
    Chart("train", "Training loss", "nats per character", ("train", metric("train/nats_per_char"))),
    Chart("val", "Validation loss", "nats per character", ("valid", metric("val/nats_per_char"))),
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
    """Draw the charts that at least one run has something for.

    Args:
        records: of the runs.
        names: of the runs, for the reader.

    Returns:
        A dictionary a chart: ``key``, ``title``, ``about``, ``notes`` (what the curves cannot show), ``thinned``, and
        ``item``, which BokehJS draws.
    """
    drawn = [draw_chart(chart, records, names, _limit(records)) for chart in CHARTS]
    return [chart for chart in drawn if chart is not None]


def draw_chart(chart: Chart, records: Sequence[RunRecord], names: Sequence[str], limit: int) -> dict[str, Any] | None:
    """Draw one chart with at most `limit` points a curve; None where no run has something for it."""
    curves = [kind for kind in (chart.curve, chart.pale) if kind is not None]
    picked = [[pick(record) for record in records] for _, pick in curves]
    found = [series for kind in picked for series in kind if series is not None]
    if not found:
        return None
    log = _is_log(np.concatenate([series.values for series in found]), chart.scale)
    plot = empty_plot(log=log, height=HEIGHT)
    notes = []
    for kind, (what, _) in reversed(list(enumerate(curves))):  # the pale ones lie below
        targets = []
        for number, series in enumerate(picked[kind]):
            if series is None:
                continue
            if not np.isfinite(series.values).any():
                notes.append(f"{names[number]}, {what}: {_word(series.values[-1])} at every step")
                continue
            targets += _add_curve(plot, series, number, names[number], limit, pale=kind > 0, log=log)
        if targets:
            plot.add_tools(_hover(what, targets))
    return {
        "key": chart.key,
        "title": chart.title,
        "about": chart.about,
        "notes": notes,
        "thinned": any(len(series.values) > limit for series in found),
        "item": json_item(plot),
    }


def extent(records: Sequence[RunRecord]) -> dict[str, float]:
    """Return how far the x axes go, in ``tokens`` (0 where no run counts them) and ``steps``."""
    ends = {}
    for name in ("tokens", "steps"):
        every = [getattr(series, name) for record in records for series in record.series.values()]
        values = np.concatenate([*every, np.zeros(1)])
        ends[name] = float(values[np.isfinite(values)].max())
    return ends


def _limit(records: Sequence[RunRecord]) -> int:
    return max(20, min(POINTS, ALL_POINTS // (len(records) * sum(1 + (chart.pale is not None) for chart in CHARTS))))


def _is_log(values: np.ndarray, scale: str) -> bool:
    finite = values[np.isfinite(values)]
    if not len(finite) or finite.min() <= 0:
        return scale == "log" and bool((finite > 0).any())
    return scale == "log" or (scale == "auto" and finite.max() > 10**DECADES * finite.min())


def _add_curve(plot: Plot, series: Series, number: int, name: str, limit: int, *, pale: bool, log: bool) -> list[Any]:
    """Add a run's curve and return the renderers that answer to a pointer."""
    kept = thin(series.values, limit)
    steps, tokens, values = (_compact(array[kept]) for array in (series.steps, series.tokens, series.values))
    shown = np.where(np.isfinite(values) & (values > 0 if log else True), values, np.nan)
    source = ColumnDataSource({"steps": steps, "tokens": tokens, "values": shown})
    colour, dash = run_style(number)["colours"][0], run_style(number)["dash"]

    def add(glyph: type[Line] | type[Scatter], data: ColumnDataSource = source, **look: Any) -> Any:
        return plot.add_glyph(data, glyph(x="tokens", y="values", **look), name=name, tags=[number])

    strength = 0.5 if pale else 1.0
    add(Line, line_color=colour, line_dash=dash, line_alpha=strength, line_width=1.5 if pale else 2)
    if len(kept) <= DOTTED:
        add(Scatter, size=4 if pale else 5, line_color=None, fill_color=colour, fill_alpha=strength)
    breaks = _breaks(shown, values)
    if breaks:
        cross = {
            "steps": steps[breaks],
            "tokens": tokens[breaks],
            "values": shown[[place - 1 for place in breaks]],
            "what": [_word(values[place]) for place in breaks],
        }
        mark = add(Scatter, ColumnDataSource(cross), marker="x", size=11, line_width=2.5, line_color=colour)
        tooltips = [("run", "$name"), ("becomes", "@what"), ("step", "@steps{0,0}"), ("tokens", "@tokens{0,0}")]
        plot.add_tools(HoverTool(renderers=[mark], tooltips=tooltips))
    # A thin line is hard to hit, above all with a thumb: these are as wide as it takes, and are not seen.
    targets = [add(Line, line_width=16, line_alpha=0)]
    if len(kept) == 1:  # a line through one point has no length to point at
        targets.append(add(Scatter, size=16, line_alpha=0, fill_alpha=0))
    return targets


def _breaks(shown: np.ndarray, values: np.ndarray) -> list[int]:
    """Where values stop being finite, after one that is drawn."""
    return [i for i in range(1, len(values)) if not np.isfinite(values[i]) and np.isfinite(shown[i - 1])]


def _hover(what: str, renderers: list[Any]) -> HoverTool:
    return HoverTool(
        renderers=renderers,
        line_policy="nearest",
        tooltips=[("run", "$name"), (what, "@values{%.4g}"), ("step", "@steps{0,0}"), ("tokens", "@tokens{0,0}")],
        formatters={"@values": "printf"},
    )


def _compact(array: np.ndarray) -> np.ndarray:
    """Whole numbers as such, which take less room."""
    whole = np.isfinite(array).all() and (array == np.round(array)).all() and np.abs(array).max() < 2**31
    return array.astype(np.int32) if whole else array


def _word(value: float) -> str:
    return "nan" if np.isnan(value) else "inf" if value > 0 else "-inf"
