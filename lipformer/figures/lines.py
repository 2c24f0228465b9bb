"""Series drawn as lines: those of several runs, infinite values, and single values."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lipformer.figures.axes import Horizontal
from lipformer.figures.quantities import finite, infinite
from lipformer.figures.style import Look, looks, power
from lipformer.runs.record import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKS = 10
"""About the number of markers on a line: enough to tell it from others, few enough to see the line."""
INFINITY = 0.97
"""Where infinite values are drawn, as a share of the height: above all others, but clear of the legend."""


def draw_lines(axes: "Axes", lines: Sequence[Series | None], horizontal: Horizontal) -> None:
    """Draw a line for each run that has the series, in the look of the run."""
    for i, (series, look) in enumerate(zip(lines, looks(len(lines)), strict=True)):
        if series is not None:
            draw_line(axes, series, horizontal, look, turn=i / len(lines))


def draw_line(
    axes: "Axes",
    series: Series,
    horizontal: Horizontal,
    look: Look,
    *,
    turn: float = 0.0,
    linewidth: float = 0.9,
    label: str | None = None,
) -> None:
    """Draw a line; `turn`, in [0, 1), shifts its markers, so that those of lines on top of each other are seen."""
    every = max(1, len(series.values) // MARKS)
    axes.plot(
        horizontal.of(series),
        finite(series.values),
        color=look.color,
        linestyle=look.dashes,
        marker=look.marker,
        markevery=(int(turn * every), every),
        linewidth=linewidth,
        label=label,
    )


def draw_infinities(
    axes: "Axes",
    series: Series,
    horizontal: Horizontal,
    look: Look,
    *,
    turn: float = 0.0,
    linewidth: float = 0.9,
) -> None:
    """Draw a line along the upper edge, with ``∞`` beside it, over the rows in which a series is infinite."""
    where = infinite(series.values)
    if where.any():
        every = max(1, len(where) // MARKS)
        axes.plot(
            horizontal.of(series),
            np.where(where, INFINITY, np.nan),
            transform=axes.get_xaxis_transform(),
            clip_on=False,
            color=look.color,
            linestyle=look.dashes,
            marker=look.marker,
            markevery=(int(turn * every), every),
            linewidth=linewidth,
            scaley=False,
        )
        axes.annotate("∞", (1.0, INFINITY), (2, 0), xycoords="axes fraction", textcoords="offset points", va="center")


def say_lone_value(axes: "Axes", series: Series, horizontal: Horizontal) -> None:
    """Write the value beside the marker of a series that has a single row."""
    value = finite(series.values)
    if len(value) == 1 and np.isfinite(value[0]):
        place = float(horizontal.of(series)[0])
        offset, side = ((-4, 0), "right") if place > horizontal.end / 2 else ((4, 0), "left")
        axes.annotate(power(value[0]), (place, value[0]), offset, textcoords="offset points", ha=side, va="center")
