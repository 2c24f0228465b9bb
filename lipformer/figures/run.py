"""The figures of one run: how it learned, and how stable it was."""

from itertools import zip_longest
from pathlib import Path

from lipformer.figures.axes import Horizontal, horizontal_axis
from lipformer.figures.grid import Panel, grid
from lipformer.figures.learning import learning_of_a_run
from lipformer.figures.maps import entropy_map
from lipformer.figures.panels import by_depth, gradient_of_a_run, trunk_of_a_run, updates_of_a_run
from lipformer.figures.quantities import (
    GAIN,
    RANGE,
    branch_gains,
    entropies,
    gradient_norms,
    learning_curves,
    output_ranges,
    trunk_constants,
    update_ratios,
)
from lipformer.figures.style import paper_style, save
from lipformer.runs.record import RunRecord

BRANCHES = ("attention", "feedforward")


def draw_run(record: RunRecord, folder: Path) -> list[Path]:
    """Draw a run: ``learning`` and ``stability``, each as PNG and PDF.

    Args:
        record: of the run; what it has no figures of is not drawn, and infinities and nan are left out.
        folder: where to; made if it is not there.

    Returns:
        The files written.
    """
    horizontal = horizontal_axis([record])
    written = []
    with paper_style():
        if learning_curves(record):
            written += save(learning_of_a_run(record, horizontal), folder / "learning.png")
        panels = _panels(record, horizontal)
        if panels:
            written += save(grid(panels, horizontal), folder / "stability.png")
    return written


def _panels(record: RunRecord, horizontal: Horizontal) -> list[Panel]:
    """Return what there is to draw; panels with a colour bar stand on the left, so that the others are wider."""
    left, right = [], []
    layers = entropies(record)
    if layers:
        left.append(Panel("attention entropy", lambda axes: entropy_map(axes, layers, horizontal)))
    ranges = output_ranges(record)
    if ranges:
        left.append(Panel("range of a block's output", lambda axes: by_depth(axes, [ranges], horizontal, RANGE)))
    gains = [branch_gains(record, kind) for kind in BRANCHES]
    if any(gains):
        left.append(Panel("branches", lambda axes: by_depth(axes, gains, horizontal, GAIN, BRANCHES)))
    trunk = trunk_constants(record)
    if trunk:
        right.append(Panel("trunk", lambda axes: trunk_of_a_run(axes, trunk, horizontal)))
    gradients = gradient_norms(record)
    if gradients:
        right.append(Panel("gradient", lambda axes: gradient_of_a_run(axes, gradients, horizontal)))
    updates = update_ratios(record)
    if updates:
        right.append(Panel("updates", lambda axes: updates_of_a_run(axes, updates, horizontal)))
    return [panel for row in zip_longest(left, right) for panel in row if panel is not None]
