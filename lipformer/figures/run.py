"""The figures of one run: its learning curves, and how stable its training was."""

from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

from lipformer.figures.axes import Horizontal, horizontal_axis
from lipformer.figures.grid import Panel, grid
from lipformer.figures.learning import learning_of_a_run
from lipformer.figures.maps import map_of_a_run
from lipformer.figures.panels import bounds_of_a_run, by_depth, curves_of_a_run, spread_of_a_run
from lipformer.figures.quantities import block_families, bounds, curves, drawings, known, learning_curves
from lipformer.figures.style import paper_style, save
from lipformer.runs import layout
from lipformer.runs.quantity import Drawing, Quantity
from lipformer.runs.readings import layer_series
from lipformer.runs.record import RunRecord

WITH_COLOUR_BAR = ("map", "blocks", "branches")
"""Kinds of panels that have a colour bar beside them."""


def draw_run(record: RunRecord, folder: Path) -> list[Path]:
    """Draw a run: ``learning`` and ``stability``, each as PNG and PDF.

    Args:
        record: the run; quantities that it does not have are not drawn.
        folder: the folder to write to; it is made if it does not exist.

    Returns:
        The files written.
    """
    horizontal = horizontal_axis([record])
    written = []
    with paper_style():
        if learning_curves(record):
            written += save(learning_of_a_run(record, horizontal), folder / f"{layout.LEARNING}.png")
        panels = _panels(record, horizontal)
        if panels:
            written += save(grid(panels, horizontal), folder / f"{layout.STABILITY}.png")
    return written


def _panels(record: RunRecord, horizontal: Horizontal) -> list[Panel]:
    """Return the panels of the quantities that the run has; those with a colour bar make up the left column."""
    left: list[Panel] = []
    right: list[Panel] = []
    for quantity, drawing in drawings():
        panel = _panel(record, quantity, drawing, horizontal)
        if panel is not None:
            (left if drawing.kind in WITH_COLOUR_BAR else right).append(panel)
    return [panel for row in zip_longest(left, right) for panel in row if panel is not None]


def _panel(record: RunRecord, quantity: Quantity, drawing: Drawing, horizontal: Horizontal) -> Panel | None:
    """Return the panel of one quantity; None where the run has nothing of it that could be drawn."""
    drawn: Any
    draw: Callable[..., None]
    match drawing.kind:
        case "map":
            drawn, draw = block_families(record, quantity, drawing).get("", {}), map_of_a_run
        case "blocks" | "branches":
            drawn, draw = block_families(record, quantity, drawing), by_depth
        case "curves":
            drawn, draw = curves(record, quantity), curves_of_a_run
        case "bounds":
            drawn, draw = bounds(record, quantity), bounds_of_a_run
        case "spread":
            drawn, draw = known(layer_series(record, quantity)), spread_of_a_run
    return Panel(drawing.title, lambda axes: draw(axes, drawn, quantity, horizontal)) if drawn else None
