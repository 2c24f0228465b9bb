"""A series as a line: one of several that are told apart, and where it is infinite."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lipformer.figures.axes import Horizontal
from lipformer.figures.quantities import finite, infinite
from lipformer.figures.style import Look, looks
from lipformer.run_record import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKS = 10
"""Markers on a line: enough to tell it from others, few enough to see it."""


def draw_lines(axes: "Axes", lines: Sequence[Series | None], horizontal: Horizontal) -> None:
    """Draw a line for each run that has the series, each in the look of its run."""
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
    """Draw a line; `turn`, in [0, 1), moves its markers, so that those of lines on each other are seen."""
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
    """Draw along the upper edge, which is marked as such, where a series is infinite."""
    where = infinite(series.values)
    if where.any():
        every = max(1, len(where) // MARKS)
        axes.plot(
            horizontal.of(series),
            np.where(where, 1.0, np.nan),
            transform=axes.get_xaxis_transform(),
            clip_on=False,
            color=look.color,
            linestyle=look.dashes,
            marker=look.marker,
            markevery=(int(turn * every), every),
            linewidth=linewidth,
            scaley=False,
        )
        axes.annotate("∞", (1.0, 1.0), (2, 0), xycoords="axes fraction", textcoords="offset points", va="center")
