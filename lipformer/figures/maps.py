"""Maps of blocks by tokens, in which a colour stands for a value."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lipformer.figures.axes import Horizontal, color_limits, few
from lipformer.figures.quantities import block_families, drawings, finite
from lipformer.figures.style import PAGE, letters, log_ticks
from lipformer.runs.quantity import Drawing, Quantity
from lipformer.runs.record import RunRecord, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure


def map_of_a_run(axes: "Axes", layers: dict[str, Series], quantity: Quantity, horizontal: Horizontal) -> None:
    """Draw a map of a quantity, with a colour bar."""
    values = [series.values for series in layers.values()]
    mesh = draw_map(axes, layers, horizontal, _color_scale(quantity, values))
    bar = axes.figure.colorbar(mesh, ax=axes, pad=0.02, aspect=14)
    bar.set_label(quantity.axis_label)
    bar.outline.set_visible(False)
    if quantity.limits is None:
        log_ticks(bar.ax.yaxis, *color_limits(values))
    axes.set_ylabel("block")


def maps_of_runs(records: Sequence[RunRecord], names: Sequence[str], horizontal: Horizontal) -> "Figure | None":
    """Draw a row of maps for each run that has some; the maps of a column share their scale of colours."""
    from matplotlib.figure import Figure

    found = [_column(records, quantity, drawing) for quantity, drawing in drawings()]
    columns = [column for column in found if column is not None]
    rows = [i for i in range(len(records)) if any(column.layers[i] for column in columns)]
    if not rows:
        return None
    figure = Figure(figsize=(PAGE, 0.9 + 1.15 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), len(columns), sharex=True, squeeze=False)
    for place, column in enumerate(columns):
        values = [one.values for i in rows for one in column.layers[i].values()]
        scale, mesh = _color_scale(column.quantity, values), None
        for row, i in enumerate(rows):
            axes = grid[row, place]
            horizontal.limit(axes)
            if column.layers[i]:
                mesh = draw_map(axes, column.layers[i], horizontal, scale)
            else:
                axes.set_axis_off()
            if place == 0:
                axes.set_ylabel("block")
        assert mesh is not None  # one of the rows has the quantity
        bar = figure.colorbar(mesh, ax=list(grid[:, place]), location="top", pad=0.02, aspect=24)
        bar.set_label(f"{letters(place + 1)[-1]} {column.title}")
        bar.outline.set_visible(False)
        if column.quantity.limits is None:
            log_ticks(bar.ax.xaxis, *color_limits(values))
        grid[-1, place].set_xlabel(horizontal.label)
    for row, i in enumerate(rows):
        grid[row, 0].set_title(names[i])
    return figure


@dataclass(frozen=True)
class _Column:
    """A column of maps.

    Attributes:
        quantity: what the maps show.
        title: of the column.
        layers: for each run, the series of each block.
    """

    quantity: Quantity
    title: str
    layers: list[dict[str, Series]]


def _column(records: Sequence[RunRecord], quantity: Quantity, drawing: Drawing) -> _Column | None:
    """Return the column of a quantity, for its first kind of branch where it has several; None where no run has it."""
    if not drawing.map_title:
        return None
    families = [block_families(record, quantity, drawing) for record in records]
    name = next((name for family in families for name in family), None)
    if name is None:
        return None
    title = f"{drawing.map_title}, {name}" if name else drawing.map_title
    return _Column(quantity, title, [family.get(name, {}) for family in families])


def _color_scale(quantity: Quantity, values: Sequence[np.ndarray]) -> "Normalize":
    """Return the scale of colours: linear where the quantity has fixed limits, else logarithmic."""
    from matplotlib.colors import LogNorm, Normalize

    return Normalize(*quantity.limits) if quantity.limits is not None else LogNorm(*color_limits(values))


def draw_map(axes: "Axes", layers: dict[str, Series], horizontal: Horizontal, scale: "Normalize") -> Any:
    """Draw layers by tokens, the first layer at the bottom; cells without a finite value are grey.

    Args:
        axes: to draw in.
        layers: the series of each layer, by the label of its row.
        horizontal: the horizontal axis.
        scale: of the colours.

    Returns:
        The mesh, from which a colour bar can be made.
    """
    from matplotlib import colormaps

    steps = np.unique(np.concatenate([series.steps for series in layers.values()]))
    cells, x = np.full((len(layers), len(steps)), np.nan), np.full(len(steps), np.nan)
    for row, series in zip(cells, layers.values(), strict=True):
        place = np.searchsorted(steps, series.steps)
        row[place], x[place] = finite(series.values), horizontal.of(series)
    colors = colormaps["viridis"].with_extremes(bad="#D0D0D0")
    edges = np.arange(len(layers) + 1) - 0.5
    mesh = axes.pcolormesh(_edges(x), edges, np.ma.masked_invalid(cells), norm=scale, cmap=colors, rasterized=True)
    axes.set_yticks(few(len(layers)), labels=[list(layers)[i] for i in few(len(layers))])
    axes.tick_params(axis="y", length=0)
    axes.grid(False)
    return mesh


def _edges(x: np.ndarray) -> np.ndarray:
    """Return (cells + 1,), the borders of cells around their places, which increase."""
    if len(x) == 1:
        return np.array([x[0] - 0.5, x[0] + 0.5])
    middles = (x[1:] + x[:-1]) / 2
    return np.concatenate([[2 * x[0] - middles[0]], middles, [2 * x[-1] - middles[-1]]])
