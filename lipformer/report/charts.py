"""The curves: one chart a quantity, all runs in the same axes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, Line

from lipformer.report.style import empty_plot, hover
from lipformer.report.thinning import thin
from lipformer.runs.metric_names import TRAIN, VALID
from lipformer.runs.quantities import by_section
from lipformer.runs.quantity import Chart, Curve, Quantity, Scale
from lipformer.runs.readings import drawable, read_curve
from lipformer.runs.record import RunRecord, tasks_of
from lipformer.tasks import Task

HEIGHT = 270
POINTS = 1_000
"""Of a curve at most."""
ALL_POINTS = 250_000
"""Of a page at most; more runs have fewer points each."""
DECADES = 1.3
"""A quantity that spans more has a logarithmic axis."""


def loss_quantities(task: Task) -> tuple[Quantity, Quantity]:
    """Return the rows of a task's objective, on the training text and on valid."""
    about, name = task.objective.long, task.objective.name
    return (
        Quantity(name, "Training loss", group=TRAIN, chart=Chart(about, Curve("train", None))),
        Quantity(name, "Validation loss", group=VALID, chart=Chart(about, Curve("valid", None))),
    )


def charted(tasks: Sequence[Task]) -> list[tuple[str, Quantity, Chart]]:
    """Return the key in the page, the quantity and the chart of all that is charted, in the order of the page."""
    losses = {
        f"{quantity.group}_{number}" if number else quantity.group: quantity
        for number, task in enumerate(tasks)
        for quantity in loss_quantities(task)
    }
    quantities = losses | {quantity.name: quantity for quantity in by_section()}
    return [(key, quantity, quantity.chart) for key, quantity in quantities.items() if quantity.chart is not None]


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
    charts = charted(tasks_of(records))
    curves = sum(1 + (chart.pale is not None) for _, _, chart in charts)
    limit = max(20, min(POINTS, ALL_POINTS // (len(records) * curves)))
    drawn = [{"key": key, **draw_chart(quantity, chart, records, names, limit)} for key, quantity, chart in charts]
    return [chart for chart in drawn if chart["curves"] or chart["notes"]]


def draw_chart(
    quantity: Quantity, chart: Chart, records: Sequence[RunRecord], names: Sequence[str], limit: int
) -> dict[str, Any]:
    """Lay out one chart, with at most `limit` points a curve."""
    drawn = [curve for curve in (chart.pale, chart.curve) if curve is not None]  # the pale ones lie below
    curves: list[dict[str, Any]] = []
    notes, every, thinned = [], [np.zeros(0)], False
    for curve in drawn:
        for number, record in enumerate(records):
            series = read_curve(record, quantity, curve)
            if series is None:
                continue
            values = drawable(series.values)
            if not np.isfinite(values).any():
                notes.append(f"{names[number]}, {curve.label}: {plain(values[-1])} at every step")
                continue
            kept = thin(values, limit)
            thinned |= len(kept) < len(values)
            every.append(values)
            curves.append(
                {
                    "run": number,
                    "what": curve.label,
                    "pale": curve is chart.pale,
                    "steps": _differences(series.steps[kept]),
                    "tokens": _differences(series.tokens[kept]),
                    "values": [plain(value) for value in values[kept]],
                }
            )
    return {
        "title": chart.title or quantity.title,
        "about": chart.about,
        "log": _is_log(np.concatenate(every), quantity.scale),
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


def _differences(values: np.ndarray) -> list[int]:
    """The first, and from each to the next; empty where they are not known."""
    return [] if np.isnan(values).any() else np.diff(values.round(), prepend=0).astype(int).tolist()


def _is_log(values: np.ndarray, scale: Scale) -> bool:
    finite = values[np.isfinite(values)]
    if not len(finite) or finite.min() <= 0:
        return scale == "log" and bool((finite > 0).any())
    return scale == "log" or (scale == "auto" and bool(finite.max() > 10**DECADES * finite.min()))
