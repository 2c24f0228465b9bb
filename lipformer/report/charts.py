"""The charts of the report: one for each quantity, with the curves of all runs in the same axes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, Line

from lipformer.report.style import empty_plot, hover
from lipformer.report.thinning import POINTS, thin
from lipformer.runs.metric_names import TRAIN, VALID
from lipformer.runs.quantities import by_section
from lipformer.runs.quantity import Chart, Curve, Quantity, Scale
from lipformer.runs.readings import drawable, read_curve
from lipformer.runs.record import RunRecord, tasks_of
from lipformer.tasks import Task

HEIGHT = 270
ALL_POINTS = 250_000
"""The largest number of points of a page: the more curves there are, the fewer points each has."""
DECADES = 1.3
"""With ``scale="auto"``, values that span more decades than this have a logarithmic axis."""


def loss_quantities(task: Task) -> tuple[Quantity, Quantity]:
    """Return a task's objective as two quantities with charts: on the training text and on the validation text."""
    about, name = task.objective.long, task.objective.name
    return (
        Quantity(name, "Training loss", group=TRAIN, chart=Chart(about, Curve("train", None))),
        Quantity(name, "Validation loss", group=VALID, chart=Chart(about, Curve("valid", None))),
    )


def charted(tasks: Sequence[Task]) -> list[tuple[str, Quantity, Chart]]:
    """Return the key in the page, the quantity and the chart of all that has a chart, in the order of the page."""
    losses = {
        f"{quantity.group}_{number}" if number else quantity.group: quantity
        for number, task in enumerate(tasks)
        for quantity in loss_quantities(task)
    }
    quantities = losses | {quantity.name: quantity for quantity in by_section()}
    return [(key, quantity, quantity.chart) for key, quantity in quantities.items() if quantity.chart is not None]


def draw_charts(records: Sequence[RunRecord], names: Sequence[str]) -> list[dict[str, Any]]:
    """Lay out the charts of all quantities that at least one run has.

    Args:
        records: the runs.
        names: the names of the runs for the reader, in the same order.

    Returns:
        One dictionary for each chart, with ``key``, ``title``, ``about``, ``log`` (whether the vertical axis is
        logarithmic), ``notes`` (sentences about curves without a finite value), ``thinned`` (whether points were left
        out) and ``curves``. A curve has ``run`` (its number), ``what`` it shows, whether it is ``pale``, and ``steps``,
        ``tokens`` and ``values``. Steps and tokens are differences from one row to the next, which take less room.
    """
    charts = charted(tasks_of(records))
    curves = sum(1 + (chart.pale is not None) for _, _, chart in charts)
    limit = max(20, min(POINTS, ALL_POINTS // (len(records) * curves)))
    drawn = [{"key": key, **draw_chart(quantity, chart, records, names, limit)} for key, quantity, chart in charts]
    return [chart for chart in drawn if chart["curves"] or chart["notes"]]


def draw_chart(
    quantity: Quantity, chart: Chart, records: Sequence[RunRecord], names: Sequence[str], limit: int
) -> dict[str, Any]:
    """Lay out one chart as `draw_charts` returns it, with at most `limit` points in a curve."""
    both = [(chart.pale, True), (chart.curve, False)]  # drawn first, pale curves lie below
    parts = [(quantity, curve, pale) for curve, pale in both if curve is not None]
    laid_out = _lay_out(parts, quantity.scale, records, names, limit)
    return {"title": chart.title or quantity.title, "about": chart.about, **laid_out}


def draw_losses(task: Task, records: Sequence[RunRecord], names: Sequence[str]) -> dict[str, Any]:
    """Lay out a task's objective in one chart: on the validation text, and pale, on the training text.

    Args:
        task: the task; runs of another one have no curves.
        records: the runs.
        names: the names of the runs for the reader, in the same order.

    Returns:
        The chart, as `draw_charts` returns it, without ``key``.
    """
    limit = max(20, min(POINTS, ALL_POINTS // (2 * max(1, len(records)))))
    parts = [
        (quantity, quantity.chart.curve, quantity.group == TRAIN)
        for quantity in loss_quantities(task)
        if quantity.chart is not None
    ]
    return {"title": "", "about": task.objective.long, **_lay_out(parts, "auto", records, names, limit)}


def _lay_out(
    parts: Sequence[tuple[Quantity, Curve, bool]],
    scale: Scale,
    records: Sequence[RunRecord],
    names: Sequence[str],
    limit: int,
) -> dict[str, Any]:
    """Lay out the curves of a chart.

    Args:
        parts: for each curve that a run can have its quantity, the curve, and whether it is pale.
        scale: of the vertical axis.
        records: the runs.
        names: their names.
        limit: the largest number of points of a curve.
    """
    curves: list[dict[str, Any]] = []
    notes, every, thinned = [], [np.zeros(0)], False
    for quantity, curve, pale in parts:
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
                    "pale": pale,
                    "steps": _differences(series.steps[kept]),
                    "tokens": _differences(series.tokens[kept]),
                    "values": [plain(value) for value in values[kept]],
                }
            )
    return {
        "log": _is_log(np.concatenate(every), scale),
        "notes": notes,
        "thinned": thinned,
        "curves": curves,
    }


def empty_chart(*, log: bool) -> dict[str, Any]:
    """Return a chart without curves in Bokeh's JSON; the script of the page copies it for each quantity."""
    plot = empty_plot(log=log, height=HEIGHT)
    # The script replaces this curve; Bokeh warns about a plot that has none, both here and in the browser.
    plot.add_glyph(ColumnDataSource({"x": [0, 1], "y": [1, 10]}), Line(x="x", y="y", line_alpha=0))
    number = [("value", "@values{%.4g}")]
    for what, told in (("curve", number), ("pale", number), ("cross", [("becomes", "@what")])):
        plot.add_tools(hover(what, [("run", "$name"), *told, ("step", "@steps{0,0}"), ("tokens", "@tokens{0,0}")]))
    return dict(json_item(plot))


def extent(records: Sequence[RunRecord]) -> dict[str, float]:
    """Return the right end of the horizontal axes: in ``tokens``, 0 where no run counts them, and in ``steps``."""
    ends = {}
    for name in ("tokens", "steps"):
        every = [getattr(series, name) for record in records for series in record.series.values()]
        values = np.concatenate([*every, np.zeros(1)])
        ends[name] = float(values[np.isfinite(values)].max())
    return ends


def plain(value: float) -> float | str:
    """Return a number for JSON: rounded to five digits; infinity and nan, which JSON does not have, as text."""
    rounded = float(f"{value:.5g}")  # the largest floats are rounded up to infinity
    return rounded if np.isfinite(rounded) else str(rounded)


def _differences(values: np.ndarray) -> list[int]:
    """Return the first value and the differences to the next ones; an empty list where a value is unknown."""
    return [] if np.isnan(values).any() else np.diff(values.round(), prepend=0).astype(int).tolist()


def _is_log(values: np.ndarray, scale: Scale) -> bool:
    finite = values[np.isfinite(values)]
    if not len(finite) or finite.min() <= 0:
        return scale == "log" and bool((finite > 0).any())
    return scale == "log" or (scale == "auto" and bool(finite.max() > 10**DECADES * finite.min()))
