"""The panels of a stability figure, one function for each kind."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from lipformer.figures.axes import ABOVE, Horizontal, few, legend_above, set_scale
from lipformer.figures.lines import draw_infinities, draw_line, say_lone_value
from lipformer.figures.quantities import finite
from lipformer.figures.style import BLUE, GREY, VERMILION, depth_colors, looks
from lipformer.runs.metric_names import TOTAL, WHOLES
from lipformer.runs.quantity import Quantity
from lipformer.runs.record import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FAMILIES: tuple[Any, ...] = ("-", (0, (3, 1.5)), (0, (1, 1)))
"""The dashes of lines that share a colour."""


def by_depth(
    axes: "Axes", families: Mapping[str, dict[str, Series]], quantity: Quantity, horizontal: Horizontal
) -> None:
    """Draw a line for each block, from dark to light.

    Args:
        axes: to draw in.
        families: by name the kinds of branches, which differ in their dashes; of each the series of the blocks.
        quantity: what is drawn.
        horizontal: the horizontal axis.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.lines import Line2D

    blocks = sorted({block for family in families.values() for block in family}, key=_number)
    colors = dict(zip(blocks, depth_colors(len(blocks)), strict=True))
    dashes = dict(zip(families, cycle(FAMILIES), strict=False))
    for name, family in families.items():
        for block, series in family.items():
            look: dict[str, Any] = {"color": colors[block], "linestyle": dashes[name], "linewidth": 0.9}
            axes.plot(horizontal.of(series), finite(series.values), **look)
    set_scale(axes, [one.values for family in families.values() for one in family.values()], quantity.scale)
    axes.set_ylabel(quantity.axis_label)
    if len(blocks) > 1:
        edges = np.arange(len(blocks) + 1) - 0.5
        shades = ScalarMappable(BoundaryNorm(edges, len(blocks)), ListedColormap([colors[block] for block in blocks]))
        bar = axes.figure.colorbar(shades, ax=axes, pad=0.02, aspect=14, drawedges=False)
        bar.set_ticks(few(len(blocks)), labels=[blocks[i] for i in few(len(blocks))])
        bar.ax.tick_params(which="both", length=0)
        bar.set_label("block")
        bar.outline.set_visible(False)
    if len(families) > 1:
        handles = [Line2D([], [], color=GREY, linestyle=dash) for dash in dashes.values()]
        axes.legend(handles, list(families), **ABOVE, ncols=len(families))


def bounds_of_a_run(axes: "Axes", trunk: dict[str, Series], quantity: Quantity, horizontal: Horizontal) -> None:
    """Draw a measured lower bound and its certificates; the space between two such lines is shaded."""
    measured = _measured(quantity)
    bounds = [name for name in trunk if name != measured]
    for (name, series), look in zip(trunk.items(), looks(len(trunk)), strict=True):
        draw_line(axes, series, horizontal, look, label=name if name == measured else f"certificate ({name})")
        draw_infinities(axes, series, horizontal, look)
        say_lone_value(axes, series, horizontal)
    if len(bounds) == 1 and measured in trunk:  # the true constant lies between them
        low, high = trunk[measured], trunk[bounds[0]]
        _, one, other = np.intersect1d(low.steps, high.steps, return_indices=True)
        between = (finite(low.values)[one], finite(high.values)[other])
        axes.fill_between(horizontal.of(low)[one], *between, color=GREY, alpha=0.1, linewidth=0)
    set_scale(axes, [series.values for series in trunk.values()], quantity.scale)
    axes.set_ylabel(quantity.axis_label)
    legend_above(axes)


def bounds_of_runs(
    axes: "Axes", trunks: Sequence[dict[str, Series]], quantity: Quantity, horizontal: Horizontal
) -> None:
    """Draw the measured lower bounds of several runs in their looks; certificates are thin and have no markers."""
    from matplotlib.lines import Line2D

    measured = _measured(quantity)
    for i, (trunk, look) in enumerate(zip(trunks, looks(len(trunks)), strict=True)):
        for name, series in trunk.items():
            if name == measured:
                draw_line(axes, series, horizontal, look, turn=i / len(trunks))
            else:
                thin = replace(look, marker="")
                draw_line(axes, series, horizontal, thin, linewidth=0.6)
                draw_infinities(axes, series, horizontal, look, turn=i / len(trunks), linewidth=0.6)
    set_scale(axes, [series.values for trunk in trunks for series in trunk.values()], quantity.scale)
    axes.set_ylabel(quantity.axis_label)
    handles = [Line2D([], [], color=GREY, marker="o"), Line2D([], [], color=GREY, linewidth=0.6)]
    axes.legend(handles, [measured, "certificate"], **ABOVE, ncols=2)


def curves_of_a_run(axes: "Axes", curves: dict[str, Series], quantity: Quantity, horizontal: Horizontal) -> None:
    """Draw the curves of the quantity's chart: one, or two, such as before and after clipping."""
    for (name, series), color, dash in zip(curves.items(), (BLUE, VERMILION), FAMILIES, strict=False):
        axes.plot(horizontal.of(series), finite(series.values), color=color, linestyle=dash, linewidth=0.9, label=name)
    set_scale(axes, [series.values for series in curves.values()], quantity.scale)
    axes.set_ylabel(quantity.axis_label)
    legend_above(axes)


def spread_of_a_run(axes: "Axes", layers: dict[str, Series], quantity: Quantity, horizontal: Horizontal) -> None:
    """Draw the total of a quantity as a line, and the range of its values over the layers as a shaded band."""
    total = layers.get(TOTAL)
    single = [series for layer, series in layers.items() if layer not in WHOLES]
    if single:
        steps = sorted(set(np.concatenate([series.steps for series in single])))
        rows = np.full((len(single), len(steps)), np.nan)
        x = np.full(len(steps), np.nan)
        for row, series in zip(rows, single, strict=True):
            place = np.searchsorted(steps, series.steps)
            row[place], x[place] = finite(series.values), horizontal.of(series)
        known = np.isfinite(rows).any(0)
        low, high = np.nanmin(rows[:, known], 0), np.nanmax(rows[:, known], 0)
        axes.fill_between(x[known], low, high, color=BLUE, alpha=0.18, linewidth=0, label="range over layers")
    if total is not None:
        axes.plot(horizontal.of(total), finite(total.values), color=BLUE, linewidth=0.9, label="all")
    set_scale(axes, [series.values for series in layers.values()], quantity.scale)
    axes.set_ylabel(quantity.axis_label)
    legend_above(axes)


def _measured(quantity: Quantity) -> str:
    """Return the label of the measured lower bound, to which the upper bounds are compared."""
    assert quantity.chart is not None
    return quantity.chart.curve.label


def _number(block: str) -> tuple[int, str]:
    return (int(block) if block.isdecimal() and len(block) < 10 else -1, block)
