"""The heat maps of the report, layers by steps: one for each run and quantity, with a scale of colours for all runs."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.embed import json_item
from bokeh.models import (
    AllLabels,
    ColumnDataSource,
    FixedTicker,
    LinearColorMapper,
    LogColorMapper,
    Range1d,
    Rect,
)
from bokeh.palettes import Viridis256
from bokeh.transform import transform

from lipformer.report.charts import plain
from lipformer.report.style import empty_plot, hover
from lipformer.report.thinning import bucket_columns
from lipformer.runs import quantities
from lipformer.runs.quantity import HeatMap, Quantity
from lipformer.runs.readings import drawable, layer_series, shown_layers
from lipformer.runs.record import RunRecord, Series

COLUMNS = 150
"""The largest number of columns of a heat map."""
ALL_CELLS = 250_000
"""The largest number of cells of a page, roughly: the more runs there are, the fewer columns each has."""
DECADES = 1
"""Values that span more decades than this have a logarithmic scale of colours."""
NAMED = re.compile(r"[\w.\-]+")
"""The names that layers have. Layers with other names are left out: Bokeh might take such a name for a formula."""
STOPS = 12
"""The number of colours of the gradient that explains the scale."""


def draw_heat_maps(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Lay out the heat maps of all quantities that at least one run has.

    Args:
        records: the runs.

    Returns:
        One dictionary for each quantity, with ``key``, ``title``, ``about``, ``thinned`` (whether a column stands for
        several steps), ``keep`` (which of their values it shows), ``scale`` (the values of the first and last colour),
        ``log`` (whether the scale is logarithmic), ``ticks`` and ``stops`` (values and colours that explain the scale),
        ``marked`` (whether nan and inf occur) and ``runs``. A run has ``run`` (its number), ``layers``, ``steps``,
        ``tokens`` and ``values``, a list for each layer.
    """
    limit = max(10, min(COLUMNS, ALL_CELLS // (50 * len(records))))
    mapped = [(quantity, quantity.heat_map) for quantity in quantities.CATALOGUE if quantity.heat_map is not None]
    drawn = [draw_heat_map(quantity, heat_map, records, limit) for quantity, heat_map in mapped]
    return [heat_map for heat_map in drawn if heat_map is not None]


def draw_heat_map(
    quantity: Quantity, heat_map: HeatMap, records: Sequence[RunRecord], limit: int
) -> dict[str, Any] | None:
    """Lay out one quantity with at most `limit` columns for each run; return None where no run has it."""
    runs: list[dict[str, Any]] = []
    every, thinned = [np.zeros(0)], False
    for number, record in enumerate(records):
        layers = shown_layers(layer_series(record, quantity), heat_map.hidden)
        layers = {name: series for name, series in layers.items() if NAMED.fullmatch(name)}
        if not layers:
            continue
        steps, tokens, values, stands = _matrix(layers)
        thinned |= len(steps) > limit
        values, stands, columns = bucket_columns(values, stands, limit, keep=quantity.worst_end)
        every.append(values.ravel())
        runs.append(
            {
                "run": number,
                "layers": list(layers),
                "steps": [int(step) for step in steps[columns]],
                "tokens": [int(count) if np.isfinite(count) else None for count in tokens[columns]],
                "values": [
                    [plain(v) if s else None for v, s in zip(row, there, strict=True)]
                    for row, there in zip(values, stands, strict=True)
                ],
            }
        )
    if not runs:
        return None
    low, high, log = _scale(np.concatenate(every), quantity.limits)
    return {
        "key": quantity.name,
        "title": quantity.title,
        "about": heat_map.about,
        "keep": quantity.worst,
        "thinned": thinned,
        "log": log,
        "ticks": (np.geomspace if log else np.linspace)(low, high, 3).tolist(),
        "stops": [Viridis256[round(place * 255 / (STOPS - 1))] for place in range(STOPS)],
        "marked": {word: any(word in row for run in runs for row in run["values"]) for word in ("nan", "inf")},
        "scale": [low, high],
        "runs": runs,
    }


def _matrix(layers: dict[str, Series]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Put the series of the layers into one matrix, a column for each step that at least one of them has.

    Returns:
        steps and tokens, (columns,); values, and whether the layer has a value at that step, (layers, columns).
    """
    steps, first = np.unique(np.concatenate([series.steps for series in layers.values()]), return_index=True)
    tokens = np.concatenate([series.tokens for series in layers.values()])[first]
    values, stands = np.full((len(layers), len(steps)), np.nan), np.zeros((len(layers), len(steps)), bool)
    for row, series in enumerate(layers.values()):
        places = np.searchsorted(steps, series.steps)
        values[row, places], stands[row, places] = drawable(series.values), True
    return steps, tokens, values, stands


def _scale(values: np.ndarray, fixed: tuple[float, float] | None) -> tuple[float, float, bool]:
    """Return the values of the first and last colour, and whether the scale between them is logarithmic."""
    if fixed is not None:
        return *fixed, False
    finite = values[np.isfinite(values)]
    positive = finite[finite > 0]
    if len(positive) and finite.min() >= 0 and positive.max() > 10**DECADES * positive.min():
        return float(positive.min()), float(positive.max()), True
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    return (low, high, False) if high > low else (low - 0.5, low + 0.5, False)


def empty_heat_map(*, log: bool) -> dict[str, Any]:
    """Return a heat map without cells in Bokeh's JSON; the script of the page copies it for each run and quantity."""
    plot = empty_plot(log=False, height=100)
    plot.update(y_range=Range1d(start=0, end=1))
    plot.left[0].update(
        ticker=FixedTicker(), axis_line_color=None, major_tick_line_color=None, major_label_policy=AllLabels()
    )
    plot.center = []
    mapper = (LogColorMapper if log else LinearColorMapper)(palette=Viridis256, low=1, high=10)
    colour = transform("values", mapper)
    source = ColumnDataSource({name: [] for name in ("x", "width", "y", "values", "layer", "step", "tokens", "text")})
    shape: dict[str, Any] = {"x": "x", "width": "width", "y": "y", "height": 1}
    plot.add_glyph(source, Rect(**shape, fill_color=colour, line_color=colour, line_width=1.5), name="cells")
    plot.add_glyph(
        ColumnDataSource({**source.data, "hatch": []}),
        Rect(
            fill_color="#D9D9D9",
            line_color="#D9D9D9",
            hatch_pattern="hatch",
            hatch_color="#B00020",
            hatch_weight=1.5,
            hatch_scale=8,
            **shape,
        ),
        name="marked",
    )
    for name in ("cells", "marked"):
        rows = [("layer", "@layer"), ("value", "@text"), ("step", "@step{0,0}"), ("tokens", "@tokens{0,0}")]
        plot.add_tools(hover(name, rows))
    return dict(json_item(plot))
