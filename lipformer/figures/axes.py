"""The axes of the panels: tokens or steps as the horizontal axis, the vertical scale, ticks and legends."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from lipformer.figures.quantities import finite, infinite
from lipformer.figures.style import log_ticks
from lipformer.runs.quantity import Scale
from lipformer.runs.record import RunRecord, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOG_FROM = 20.0
"""The ratio of the largest to the smallest value above which an axis is logarithmic."""
LEAST_SPAN = 4.0
"""The smallest ratio of the ends of an axis that is always logarithmic: it contains three ticks, whatever the ends."""

ABOVE: dict[str, Any] = {
    "loc": "lower right",
    "bbox_to_anchor": (1.0, 1.0),
    "borderaxespad": 0.1,
    "borderpad": 0.0,
    "handlelength": 2.2,
}
"""The options of a legend above the panel, where it covers no line."""


@dataclass(frozen=True)
class Horizontal:
    """The horizontal axis: tokens seen, or optimizer steps where a run does not say how many tokens it saw.

    Attributes:
        label: its label, with the unit.
        unit: how many tokens or steps are one unit of the axis.
        tokens: whether the axis is in tokens.
        end: where the longest run ends, in units of the axis.
    """

    label: str
    unit: float
    tokens: bool
    end: float

    def of(self, series: Series) -> np.ndarray:
        """Return (rows,), the places of the rows of a series on the axis."""
        return (series.tokens if self.tokens else series.steps) / self.unit

    def limit(self, axes: "Axes") -> None:
        """Set the limits of `axes` so that the longest run fits."""
        axes.set_xlim(0, 1.02 * self.end)


def horizontal_axis(records: Sequence[RunRecord]) -> Horizontal:
    """Return an axis over which all series of all records can be drawn."""
    series = list(chain.from_iterable(record.series.values() for record in records))
    tokens = bool(series) and all(np.isfinite(one.tokens).all() for one in series)
    end = max((float(x[-1]) for x in (one.tokens if tokens else one.steps for one in series) if len(x)), default=1.0)
    unit, name = (1e6, "millions") if end >= 2e6 else (1e3, "thousands") if end >= 2e3 else (1.0, "")
    label = "tokens seen" if tokens else "optimizer steps"
    return Horizontal(f"{label} ({name})" if name else label, unit, tokens, end / unit or 1.0)


def set_scale(axes: "Axes", values: Sequence[np.ndarray], scale: Scale) -> None:
    """Make the vertical axis logarithmic, if its scale is so or if it is ``auto`` and the values span much.

    Args:
        axes: in which the values are drawn.
        values: those of the lines.
        scale: of the axis. With ``log`` it leaves room at the top for infinite values.
    """
    if scale == "linear":
        return
    always_log = scale == "log"
    every = np.concatenate(values or [np.ones(1)])
    known = every[np.isfinite(finite(every))]
    positive = known[known > 0]
    if not len(positive):
        return
    low, high = float(positive.min()), float(positive.max())
    if not always_log and high <= LOG_FROM * low:
        return
    axes.set_yscale("log")
    if always_log and high < LEAST_SPAN * low:
        middle = math.sqrt(low) * math.sqrt(high)
        low, high = middle / math.sqrt(LEAST_SPAN), middle * math.sqrt(LEAST_SPAN)
        axes.set_ylim(low, high)
    log_ticks(axes.yaxis, low, high)
    if always_log and infinite(every).any():  # infinite values are drawn above all others and above the ticks
        low, high = axes.get_ylim()
        axes.set_ylim(low, high * (high / low) ** 0.12)


def color_limits(values: Iterable[np.ndarray]) -> tuple[float, float]:
    """Return the smallest and the largest value of a logarithmic scale of colours."""
    known = np.concatenate([finite(one) for one in values])
    known = known[known > 0]
    low, high = (float(known.min()), float(known.max())) if len(known) else (1.0, 1.0)
    return low, max(high, 1.01 * low)


def few(count: int) -> list[int]:
    """Return which of `count` rows get a tick: all of them, or as many as there is room for."""
    return list(range(0, count, math.ceil(count / 8)))


def legend_above(axes: "Axes") -> None:
    """Add a legend above the panel where it has several lines."""
    handles, _ = axes.get_legend_handles_labels()
    if len(handles) > 1:
        axes.legend(**ABOVE, ncols=len(handles))
