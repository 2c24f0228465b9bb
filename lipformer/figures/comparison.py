"""The figures of several runs: a line for each, in the order in which they are given, and a row of maps for each."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lipformer.figures.axes import Horizontal, horizontal_axis, scale
from lipformer.figures.grid import Panel, grid, with_legend
from lipformer.figures.learning import learning_panels
from lipformer.figures.lines import draw_lines
from lipformer.figures.maps import maps_of_runs
from lipformer.figures.panels import trunk_of_runs
from lipformer.figures.quantities import (
    ENTROPY,
    GAIN,
    GRADIENT,
    RANGE,
    UPDATE,
    gradient_norms,
    least_gain,
    mean_entropy,
    output_ranges,
    reduced,
    trunk_constants,
    update_ratios,
)
from lipformer.figures.style import paper_style, save
from lipformer.runs.record import RunRecord, Series, name_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def compare_runs(records: Sequence[RunRecord], folder: Path) -> list[Path]:
    """Draw several runs: ``learning`` and ``stability`` with a line for each, ``layers`` with a row of maps for each.

    Args:
        records: of the runs; colours follow their order.
        folder: where to; made if it is not there.

    Returns:
        The files written, each figure as PNG and PDF.
    """
    horizontal = horizontal_axis(records)
    names = name_runs(records)
    written = []
    with paper_style():
        panels = learning_panels(records, horizontal)
        if panels:
            written += save(with_legend(grid(panels, horizontal), names), folder / "learning.png")
        panels = _panels(records, horizontal)
        if panels:
            written += save(with_legend(grid(panels, horizontal), names), folder / "stability.png")
        maps = maps_of_runs(records, names, horizontal)
        if maps is not None:
            written += save(maps, folder / "layers.png")
    return written


def _panels(records: Sequence[RunRecord], horizontal: Horizontal) -> list[Panel]:
    """Return a panel for each quantity that some run has, each a line a run."""

    def panel(title: str, label: str, lines: Sequence[Series | None]) -> Panel:
        def draw(axes: "Axes") -> None:
            draw_lines(axes, lines, horizontal)
            scale(axes, [one.values for one in lines if one is not None])
            axes.set_ylabel(label)

        return Panel(title, draw)

    panels = []
    candidates = (
        ("attention entropy, mean of the layers", ENTROPY, [mean_entropy(r) for r in records]),
        ("range of a block's output, largest", RANGE, [reduced(output_ranges(r), np.nanmax) for r in records]),
        ("gradient, before clipping", GRADIENT, [gradient_norms(r).get("before clipping") for r in records]),
        ("update of all parameters", UPDATE, [update_ratios(r).get("total") for r in records]),
        ("branches, least gain", GAIN, [least_gain(r) for r in records]),
    )
    for title, label, lines in candidates:
        if any(line is not None for line in lines):
            panels.append(panel(title, label, lines))
    trunks = [trunk_constants(record) for record in records]
    if any(trunks):
        panels.insert(2, Panel("trunk", lambda axes: trunk_of_runs(axes, trunks, horizontal)))
    return panels
