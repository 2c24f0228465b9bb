"""The map of a sweep's scores, with a panel for each value of one key, and its lines where there is no second axis."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lipformer.figures.style import COLUMN, GREY, PAGE, VERMILION, looks
from lipformer.runs.swept import Axes, Key, Setting, cells_of, colour_ends
from lipformer.tasks import Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Panel
    from matplotlib.figure import Figure

PANELS = 3
"""The largest number of panels in a row."""
MOST_WRITTEN = 6
"""With more columns than this the cells are too narrow for their values."""


def map_of_settings(settings: Sequence[Setting], keys: Sequence[Key], axes: Axes, task: Task) -> "Figure":
    """Draw a panel of cells for each value of the panel's key, coloured by the mean over seeds of their best setting.

    A cross marks a cell of which a job diverged, and a star the best one; cells without a score are white, and say why.
    """
    from matplotlib import colormaps
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    assert axes.x is not None
    assert axes.y is not None
    cells = cells_of(settings, keys, axes)
    panels = [""] if axes.panel is None else keys[axes.panel].place_names
    columns, rows = keys[axes.x].place_names, keys[axes.y].place_names
    across = min(PANELS, len(panels))
    down = math.ceil(len(panels) / across)
    low, high, above = colour_ends(settings)
    scale, colours = Normalize(low, high), colormaps["viridis"]
    written = len(columns) * across <= PANELS * MOST_WRITTEN

    def tone_of(setting: Setting) -> Any:
        return None if setting.value is None else colours(scale(setting.value))

    figure = Figure(
        figsize=(PAGE if across > 1 else COLUMN, 0.7 + down * (0.45 + 0.3 * max(2, len(rows)))), layout="constrained"
    )
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for place, name in enumerate(panels):
        panel = grid[place // across, place % across]
        values = np.full((len(rows), len(columns)), np.nan)
        for (x, y, at), found in cells.items():
            if at == place and found[0].value is not None:
                values[y, x] = found[0].value
        mesh = panel.pcolormesh(np.ma.masked_invalid(values), norm=scale, cmap=colours)
        for (x, y, at), found in cells.items():
            if at == place:
                _mark(panel, x, y, found[0], tone_of(found[0]), best=found[0] is settings[0], written=written)
        _label(panel, keys, axes, columns, rows)
        if name and axes.panel is not None:
            panel.set_title(f"{keys[axes.panel].name} {name}")
    for place in range(len(panels), down * across):
        grid[place // across, place % across].set_axis_off()
    bar = figure.colorbar(mesh, ax=grid, pad=0.02, aspect=18, extend="max" if above else "neither")
    bar.set_label(f"{task.objective.long}, best on valid")
    bar.outline.set_visible(False)
    return figure


def _mark(panel: "Panel", x: int, y: int, setting: Setting, tone: Any, *, best: bool, written: bool) -> None:
    """Write into a cell what it is: its value, a cross for jobs that diverged, a star, or why it has no value."""
    middle, size = (x + 0.5, y + 0.5), 5.5
    diverged = setting.counts["diverged"]
    if tone is None:
        if setting.state == "diverged":
            panel.plot(*middle, marker="x", markersize=7, markeredgewidth=1.4, color=VERMILION)
        else:
            panel.annotate(setting.state, middle, ha="center", va="center", fontsize=size, color=GREY)
        return
    ink = "black" if 0.2126 * tone[0] + 0.7152 * tone[1] + 0.0722 * tone[2] > 0.45 else "white"
    if written and setting.value is not None:
        text = f"{setting.value:.3f}{' …' if setting.state == 'so_far' else ''}"
        panel.annotate(text, middle, ha="center", va="center", fontsize=size, color=ink)
    if best and setting.scores:
        panel.plot(x + 0.12, y + 0.8, marker="*", markersize=5, color=ink, markeredgewidth=0)
    if diverged:
        panel.plot(x + 0.86, y + 0.8, marker="x", markersize=4, markeredgewidth=1.1, color=ink)
        label = f"{diverged} of {len(setting.jobs)}"
        panel.annotate(label, (x + 0.5, y + 0.16), ha="center", va="center", fontsize=size - 1, color=ink)


def _label(panel: "Panel", keys: Sequence[Key], axes: Axes, columns: Sequence[str], rows: Sequence[str]) -> None:
    assert axes.x is not None
    assert axes.y is not None
    panel.set_xticks(np.arange(len(columns)) + 0.5, labels=list(columns), rotation=90 if _crowded(columns) else 0)
    panel.set_yticks(np.arange(len(rows)) + 0.5, labels=list(rows))
    panel.tick_params(length=0)
    panel.grid(False)
    panel.set_xlim(0, len(columns))
    panel.set_ylim(0, len(rows))
    panel.set_xlabel(keys[axes.x].name)
    panel.set_ylabel(keys[axes.y].name)
    panel.label_outer()  # keeps those at the edges


def _crowded(names: Sequence[str]) -> bool:
    return sum(map(len, names)) > 24


def lines_of_settings(settings: Sequence[Setting], keys: Sequence[Key], axes: Axes, task: Task) -> "Figure":
    """Draw the score against one key, a line for each value of another: mean, smallest and largest over the seeds.

    A cross above the line marks the places at which a job diverged.
    """
    from matplotlib.figure import Figure

    assert axes.x is not None
    cells = cells_of(settings, keys, axes)
    columns = keys[axes.x].place_names
    lines = [""] if axes.panel is None else keys[axes.panel].place_names
    low, high, _ = colour_ends(settings)
    figure = Figure(figsize=(COLUMN * 1.4, 2.5 + 0.14 * math.ceil(len(lines) / 3)), layout="constrained")
    panel = figure.add_subplot()
    top = high + 0.12 * (high - low)
    for line, (name, look) in enumerate(zip(lines, looks(len(lines)), strict=True)):
        shift = 0.0 if len(lines) < 2 else (line / (len(lines) - 1) - 0.5) * 0.16
        found = {x: group[0] for (x, _, at), group in sorted(cells.items()) if at == line}
        known = {x: setting for x, setting in found.items() if setting.value is not None}
        values = np.array([setting.value for setting in known.values()], dtype=float)
        least = np.array([min(s.scores, default=s.value) for s in known.values()], dtype=float)
        most = np.array([max(s.scores, default=s.value) for s in known.values()], dtype=float)
        panel.errorbar(
            np.array(list(known)) + shift,
            values,
            yerr=(values - least, most - values),
            color=look.color,
            linestyle=look.dashes if keys[axes.x].numeric else "",
            marker=look.marker,
            capsize=2,
            elinewidth=0.8,
            label=f"{keys[axes.panel].name} {name}" if axes.panel is not None else None,
        )
        crosses = [x + shift for x, setting in found.items() if setting.counts["diverged"]]
        panel.plot(
            crosses, [top] * len(crosses), marker="x", linestyle="", markersize=5, markeredgewidth=1.2, color=look.color
        )
    panel.set_ylim(low - 0.08 * (high - low), top + 0.06 * (high - low))
    panel.set_xlim(-0.5, len(columns) - 0.5)
    panel.set_xticks(range(len(columns)), labels=list(columns), rotation=90 if _crowded(columns) else 0)
    panel.set_xlabel(keys[axes.x].name)
    panel.set_ylabel(f"{task.objective.long}, valid")
    if len(lines) > 1:
        figure.legend(loc="outside lower center", ncols=3)
    return figure
