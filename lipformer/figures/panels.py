"""The single panels of how stable training was: blocks by depth, the trunk's constant, gradients, updates."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lipformer.figures.axes import ABOVE, Horizontal, few, legend_above, scale
from lipformer.figures.lines import draw_infinities, draw_line, say_lone_value
from lipformer.figures.quantities import GRADIENT, LIPSCHITZ, UPDATE, finite
from lipformer.figures.style import BLUE, GREY, VERMILION, depth_colors, looks
from lipformer.runs.record import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FAMILIES: tuple[Any, ...] = ("-", (0, (3, 1.5)))
"""Dashes of lines that share their colours."""


def by_depth(
    axes: "Axes",
    families: Sequence[dict[str, Series]],
    horizontal: Horizontal,
    label: str,
    names: Sequence[str] = (),
) -> None:
    """Draw a line for each block, dark to light; families of them differ in dashes.

    Args:
        axes: to draw in.
        families: series by block.
        horizontal: the axis.
        label: of the vertical axis.
        names: of the families, where there are two.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.lines import Line2D

    blocks = sorted({block for family in families for block in family}, key=_number)
    colors = dict(zip(blocks, depth_colors(len(blocks)), strict=True))
    for family, dash in zip(families, FAMILIES, strict=False):
        for block, series in family.items():
            axes.plot(horizontal.of(series), finite(series.values), color=colors[block], linestyle=dash, linewidth=0.9)
    scale(axes, [one.values for family in families for one in family.values()])
    axes.set_ylabel(label)
    if len(blocks) > 1:
        edges = np.arange(len(blocks) + 1) - 0.5
        shades = ScalarMappable(BoundaryNorm(edges, len(blocks)), ListedColormap([colors[block] for block in blocks]))
        bar = axes.figure.colorbar(shades, ax=axes, pad=0.02, aspect=14, drawedges=False)
        bar.set_ticks(few(len(blocks)), labels=[blocks[i] for i in few(len(blocks))])
        bar.ax.tick_params(which="both", length=0)
        bar.set_label("block")
        bar.outline.set_visible(False)
    if len(families) > 1:
        handles = [Line2D([], [], color=GREY, linestyle=dash) for dash in FAMILIES]
        axes.legend(handles, list(names), **ABOVE, ncols=2)


def trunk_of_a_run(axes: "Axes", trunk: dict[str, Series], horizontal: Horizontal) -> None:
    """Draw what was measured of the trunk's constant and its certificates, the room between shaded."""
    bounds = [name for name in trunk if name != "measured"]
    for (name, series), look in zip(trunk.items(), looks(len(trunk)), strict=True):
        draw_line(axes, series, horizontal, look, label=name if name == "measured" else f"certificate ({name})")
        draw_infinities(axes, series, horizontal, look)
        say_lone_value(axes, series, horizontal)
    if len(bounds) == 1 and "measured" in trunk:  # the truth lies between
        low, high = trunk["measured"], trunk[bounds[0]]
        _, one, other = np.intersect1d(low.steps, high.steps, return_indices=True)
        between = (finite(low.values)[one], finite(high.values)[other])
        axes.fill_between(horizontal.of(low)[one], *between, color=GREY, alpha=0.1, linewidth=0)
    scale(axes, [series.values for series in trunk.values()], always_log=True)
    axes.set_ylabel(LIPSCHITZ)
    legend_above(axes)


def trunk_of_runs(axes: "Axes", trunks: Sequence[dict[str, Series]], horizontal: Horizontal) -> None:
    """Draw the trunk's constant of several runs in their looks, certificates thin and without markers."""
    from matplotlib.lines import Line2D

    for i, (trunk, look) in enumerate(zip(trunks, looks(len(trunks)), strict=True)):
        for name, series in trunk.items():
            if name == "measured":
                draw_line(axes, series, horizontal, look, turn=i / len(trunks))
            else:
                thin = replace(look, marker="")
                draw_line(axes, series, horizontal, thin, linewidth=0.6)
                draw_infinities(axes, series, horizontal, look, turn=i / len(trunks), linewidth=0.6)
    scale(axes, [series.values for trunk in trunks for series in trunk.values()], always_log=True)
    axes.set_ylabel(LIPSCHITZ)
    handles = [Line2D([], [], color=GREY, marker="o"), Line2D([], [], color=GREY, linewidth=0.6)]
    axes.legend(handles, ["measured", "certificate"], **ABOVE, ncols=2)


def gradient_of_a_run(axes: "Axes", gradients: dict[str, Series], horizontal: Horizontal) -> None:
    """Draw the norm of the gradient before and after clipping."""
    for (name, series), color, dash in zip(gradients.items(), (BLUE, VERMILION), FAMILIES, strict=False):
        axes.plot(horizontal.of(series), finite(series.values), color=color, linestyle=dash, linewidth=0.9, label=name)
    scale(axes, [series.values for series in gradients.values()])
    axes.set_ylabel(GRADIENT)
    legend_above(axes)


def updates_of_a_run(axes: "Axes", updates: dict[str, Series], horizontal: Horizontal) -> None:
    """Draw the update of all parameters together, and shade what the updates of the layers span."""
    total = updates.get("total")
    layers = [series for layer, series in updates.items() if layer != "total"]
    if layers:
        steps = sorted(set(np.concatenate([series.steps for series in layers])))
        rows = np.full((len(layers), len(steps)), np.nan)
        x = np.full(len(steps), np.nan)
        for row, series in zip(rows, layers, strict=True):
            place = np.searchsorted(steps, series.steps)
            row[place], x[place] = finite(series.values), horizontal.of(series)
        known = np.isfinite(rows).any(0)
        low, high = np.nanmin(rows[:, known], 0), np.nanmax(rows[:, known], 0)
        axes.fill_between(x[known], low, high, color=BLUE, alpha=0.18, linewidth=0, label="range over layers")
    if total is not None:
        axes.plot(horizontal.of(total), finite(total.values), color=BLUE, linewidth=0.9, label="all")
    scale(axes, [series.values for series in updates.values()])
    axes.set_ylabel(UPDATE)
    legend_above(axes)


def _number(block: str) -> tuple[int, str]:
    return (int(block) if block.isdecimal() and len(block) < 10 else -1, block)
