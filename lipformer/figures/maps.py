"""Maps: layers by tokens, a colour for each value."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lipformer.figures.axes import Horizontal, color_limits, few
from lipformer.figures.quantities import ENTROPY, GAIN, branch_gains, entropies, finite, output_ranges
from lipformer.figures.style import PAGE, letters, log_ticks
from lipformer.runs.record import RunRecord, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure


def entropy_map(axes: "Axes", layers: dict[str, Series], horizontal: Horizontal) -> None:
    """Draw the entropy of each block's attention, with a bar of its colours."""
    from matplotlib.colors import Normalize

    mesh = draw_map(axes, layers, horizontal, Normalize(0, 1))
    bar = axes.figure.colorbar(mesh, ax=axes, pad=0.02, aspect=14)
    bar.set_label(ENTROPY)
    bar.outline.set_visible(False)
    axes.set_ylabel("block")


def maps_of_runs(records: Sequence[RunRecord], names: Sequence[str], horizontal: Horizontal) -> "Figure | None":
    """Draw a row of maps for each run that has some, in colours of the same scale down a column."""
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.figure import Figure

    quantities: list[tuple[str, list[dict[str, Series]]]] = [
        (ENTROPY, [entropies(record) for record in records]),
        ("range of the blocks' outputs", [output_ranges(record) for record in records]),
        (f"{GAIN}, attention", [branch_gains(record, "attention") for record in records]),
    ]
    quantities = [quantity for quantity in quantities if any(quantity[1])]
    rows = [i for i in range(len(records)) if any(layers[i] for _, layers in quantities)]
    if not rows:
        return None
    figure = Figure(figsize=(PAGE, 0.9 + 1.15 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), len(quantities), sharex=True, squeeze=False)
    for column, (label, layers) in enumerate(quantities):
        shared = [one.values for i in rows for one in layers[i].values()]
        low, high = (0.0, 1.0) if label == ENTROPY else color_limits(shared)
        scale = Normalize(low, high) if label == ENTROPY else LogNorm(low, high)
        mesh = None
        for row, i in enumerate(rows):
            axes = grid[row, column]
            horizontal.limit(axes)
            if layers[i]:
                mesh = draw_map(axes, layers[i], horizontal, scale)
            else:
                axes.set_axis_off()
            if column == 0:
                axes.set_ylabel("block")
        assert mesh is not None  # one of the rows has the quantity
        bar = figure.colorbar(mesh, ax=list(grid[:, column]), location="top", pad=0.02, aspect=24)
        bar.set_label(f"{letters(column + 1)[-1]} {label}")
        bar.outline.set_visible(False)
        if label != ENTROPY:
            log_ticks(bar.ax.xaxis, low, high)
        grid[-1, column].set_xlabel(horizontal.label)
    for row, i in enumerate(rows):
        grid[row, 0].set_title(names[i])
    return figure


def draw_map(axes: "Axes", layers: dict[str, Series], horizontal: Horizontal, scale: "Normalize") -> Any:
    """Draw layers by tokens, the first at the bottom; grey where nothing is known.

    Returns:
        What a bar of its colours is made of.
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
    """Return (cells + 1,), the borders of cells around rising places."""
    if len(x) == 1:
        return np.array([x[0] - 0.5, x[0] + 0.5])
    middles = (x[1:] + x[:-1]) / 2
    return np.concatenate([[2 * x[0] - middles[0]], middles, [2 * x[-1] - middles[-1]]])
