"""The curves of learning: of one run in a figure of its own, of several in two panels."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lipformer.figures.axes import Horizontal, legend_above
from lipformer.figures.grid import Panel
from lipformer.figures.lines import draw_lines
from lipformer.figures.quantities import finite, learning_curves
from lipformer.figures.style import COLUMN, GREY, VERMILION
from lipformer.run_record import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALE_BLUE = "#8FC7EC"
"""Of the curve on train, which is ragged, and lies behind that on valid."""


def learning_of_a_run(record: RunRecord, horizontal: Horizontal) -> "Figure":
    """Draw a run that has learning curves, nats on the left and bits on the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(COLUMN, 2.3), layout="constrained")
    axes = figure.add_subplot()
    curves = learning_curves(record)
    if "train" in curves:
        axes.plot(horizontal.of(curves["train"]), finite(curves["train"].values), color=PALE_BLUE, label="train")
    if "valid" in curves:
        valid = curves["valid"]
        axes.plot(horizontal.of(valid), finite(valid.values), color=VERMILION, marker="o", label="valid")
    if record.status == "diverged":
        end = max(horizontal.of(one)[-1] for one in curves.values())
        axes.axvline(end, color=GREY, linestyle=":", label="diverged")
    axes.set_ylim(*_nats_limits([record], horizontal))
    horizontal.limit(axes)
    axes.set_xlabel(horizontal.label)
    axes.set_ylabel("nats per character")
    bits = axes.secondary_yaxis("right", functions=(_to_bits, _to_nats))
    bits.set_ylabel("bits per character")
    legend_above(axes)
    return figure


def learning_panels(records: Sequence[RunRecord], horizontal: Horizontal) -> list[Panel]:
    """Return a panel for ``train`` and one for ``valid``, a line for each run, where some run has them."""
    limits = _nats_limits(records, horizontal)

    def panel(name: str) -> Panel:
        def draw(axes: "Axes") -> None:
            draw_lines(axes, [learning_curves(record).get(name) for record in records], horizontal)
            axes.set_ylim(*limits)
            axes.set_ylabel("nats per character")

        return Panel(name, draw)

    return [panel(name) for name in ("train", "valid") if any(name in learning_curves(record) for record in records)]


def _to_bits(nats: Any) -> Any:
    return nats / math.log(2)


def _to_nats(bits: Any) -> Any:
    return bits * math.log(2)


def _nats_limits(records: Sequence[RunRecord], horizontal: Horizontal) -> tuple[float, float]:
    """Return limits that leave room for where the runs end up: the fall of the first steps is cut off.

    So is what lies far above where they began, as a run that diverges does.
    """
    curves = [
        (horizontal.of(one), finite(one.values)) for record in records for one in learning_curves(record).values()
    ]
    end = max((x[-1] for x, _ in curves), default=1.0)
    begun = max((y[np.isfinite(y)][0] for _, y in curves), default=1.0)
    late = np.concatenate([y[(x >= 0.03 * end) & np.isfinite(y)] for x, y in curves] or [np.ones(1)])
    late = late if len(late) else np.array([begun])
    low, high = float(late.min()), float(min(late.max(), 1.1 * begun))
    margin = max(0.06 * (high - low), 0.01 * abs(high)) or 0.05
    return low - margin, high + margin
