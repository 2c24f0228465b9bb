"""The learning curves: one run has a figure, several runs have two panels."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lipformer.figures.axes import Horizontal, legend_above
from lipformer.figures.grid import Panel
from lipformer.figures.lines import draw_lines
from lipformer.figures.quantities import finite, learning_curves
from lipformer.figures.style import COLUMN, GREY, VERMILION
from lipformer.runs.record import RunRecord
from lipformer.tasks import Measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALE_BLUE = "#8FC7EC"
"""The colour of the curve on train, which is ragged and lies behind the curve on valid."""


def learning_of_a_run(record: RunRecord, horizontal: Horizontal) -> "Figure":
    """Draw the learning curves of a run; the left axis is the objective, the right one a measure derived from it."""
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
    axes.set_ylim(*learning_limits([record], horizontal))
    horizontal.limit(axes)
    axes.set_xlabel(horizontal.label)
    axes.set_ylabel(record.task.objective.long)
    for measure in record.task.derived[:1]:
        right = axes.secondary_yaxis("right", functions=_scale(measure))
        right.set_ylabel(measure.long)
    legend_above(axes)
    return figure


def learning_panels(records: Sequence[RunRecord], horizontal: Horizontal) -> list[Panel]:
    """Return a panel for ``train`` and one for ``valid``, where some run has such curves, with a line for each run.

    Runs of another task than the first one's have no line: their objectives cannot be compared.
    """
    if not records:
        return []
    task = records[0].task
    curves = [learning_curves(record) if record.task == task else {} for record in records]
    limits = learning_limits([record for record in records if record.task == task], horizontal)

    def panel(name: str) -> Panel:
        def draw(axes: "Axes") -> None:
            draw_lines(axes, [curve.get(name) for curve in curves], horizontal)
            axes.set_ylim(*limits)
            axes.set_ylabel(task.objective.long)

        return Panel(name, draw)

    return [panel(name) for name in ("train", "valid") if any(name in curve for curve in curves)]


def _scale(measure: Measure) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return the functions that convert the objective to the measure, and the measure to the objective."""
    return (lambda score: score / measure.size), (lambda value: value * measure.size)


def learning_limits(records: Sequence[RunRecord], horizontal: Horizontal) -> tuple[float, float]:
    """Return the limits of the vertical axis, which show well where the runs end.

    The steep fall of the first steps is cut off, and so is what lies far above the first value, as in a run that
    diverges.
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
