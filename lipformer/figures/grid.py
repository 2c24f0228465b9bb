"""Figures made of panels: in two columns, with a letter each, and below them a legend of the runs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lipformer.figures.axes import Horizontal
from lipformer.figures.style import COLUMN, PAGE, letters, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Panel:
    """A panel of a figure.

    Attributes:
        title: its title.
        draw: draws the panel into the axes that it is given.
    """

    title: str
    draw: Callable[["Axes"], None]


def grid(panels: Sequence[Panel], horizontal: Horizontal) -> "Figure":
    """Return a figure with the panels in two columns, or a figure of one column where there is one panel."""
    from matplotlib.figure import Figure

    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(PAGE if columns == 2 else COLUMN, 1.85 * rows), layout="constrained")
    for i, (panel, letter) in enumerate(zip(panels, letters(len(panels)), strict=True)):
        axes = figure.add_subplot(rows, columns, i + 1)
        panel.draw(axes)
        axes.set_title(f"{letter} {panel.title}" if len(panels) > 1 else panel.title)
        horizontal.limit(axes)
        axes.locator_params(axis="x", nbins=6)
        if i + columns >= len(panels):
            axes.set_xlabel(horizontal.label)
    return figure


def with_legend(figure: "Figure", names: Sequence[str]) -> "Figure":
    """Add a legend of the runs below the panels, and make the figure higher by the room it takes."""
    from matplotlib.lines import Line2D

    width, height = figure.get_size_inches()
    columns = max(1, min(len(names), int(width * 17 / (max(map(len, names)) + 9))))  # 17 characters are an inch
    figure.set_size_inches(width, height + 0.14 * math.ceil(len(names) / columns) + 0.05)
    handles = [Line2D([], [], color=k.color, linestyle=k.dashes, marker=k.marker) for k in looks(len(names))]
    figure.legend(handles, names, loc="outside lower center", ncols=columns)
    return figure
