"""The figures of several runs: each run has a line, in the order in which the runs are given, and a row of maps."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lipformer.figures.axes import Horizontal, horizontal_axis, set_scale
from lipformer.figures.grid import Panel, grid, with_legend
from lipformer.figures.learning import learning_panels
from lipformer.figures.lines import draw_lines
from lipformer.figures.maps import maps_of_runs
from lipformer.figures.panels import bounds_of_runs
from lipformer.figures.quantities import bounds, compared, drawings
from lipformer.figures.style import paper_style, save
from lipformer.runs import layout
from lipformer.runs.quantity import Drawing, Quantity
from lipformer.runs.record import RunRecord, name_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def compare_runs(records: Sequence[RunRecord], folder: Path) -> list[Path]:
    """Draw several runs: ``learning`` and ``stability`` with a line for each, ``layers`` with a row of maps for each.

    Args:
        records: the runs; colours follow their order.
        folder: the folder to write to; it is made if it does not exist.

    Returns:
        The files written, each figure as PNG and PDF.
    """
    horizontal = horizontal_axis(records)
    names = name_runs(records)
    written = []
    with paper_style():
        panels = learning_panels(records, horizontal)
        if panels:
            written += save(with_legend(grid(panels, horizontal), names), folder / f"{layout.LEARNING}.png")
        panels = _panels(records, horizontal)
        if panels:
            written += save(with_legend(grid(panels, horizontal), names), folder / f"{layout.STABILITY}.png")
        maps = maps_of_runs(records, names, horizontal)
        if maps is not None:
            written += save(maps, folder / f"{layout.LAYERS}.png")
    return written


def _panels(records: Sequence[RunRecord], horizontal: Horizontal) -> list[Panel]:
    """Return a panel for each quantity that some run has, with one line for each run; bounds have several."""
    return [
        panel
        for quantity, drawing in drawings()
        if (panel := _panel(records, quantity, drawing, horizontal)) is not None
    ]


def _panel(records: Sequence[RunRecord], quantity: Quantity, drawing: Drawing, horizontal: Horizontal) -> Panel | None:
    """Return the panel of one quantity; None where no run has it."""
    if drawing.kind == "bounds":
        trunks = [bounds(record, quantity) for record in records]
        draw = Panel(drawing.compared, lambda axes: bounds_of_runs(axes, trunks, quantity, horizontal))
        return draw if any(trunks) else None
    lines = [compared(record, quantity, drawing) for record in records]

    def draw_all(axes: "Axes") -> None:
        draw_lines(axes, lines, horizontal)
        set_scale(axes, [one.values for one in lines if one is not None], quantity.scale)
        axes.set_ylabel(quantity.axis_label)

    return Panel(drawing.compared, draw_all) if any(line is not None for line in lines) else None
