"""The figure of certified predictions: which share of them does not change within a radius."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lipformer.figures.style import BLUE, GREY, PAGE, VERMILION, log_ticks, paper_style, save


def certified_share(
    radii: Sequence[float],
    certified: Sequence[float],
    resisting: Sequence[float],
    *,
    closest: float,
    title: str,
    movement: str,
    file: Path,
) -> list[Path]:
    """Draw the share of predictions that no movement below a radius changes, by certificate and by attack.

    The true share lies between the curves: up to the lower one there is a proof, above the upper one a counterexample.

    Args:
        radii: in increasing order, all above 0.
        certified: for each radius the share of predictions that is certified.
        resisting: for each radius the share of predictions that an attack did not change.
        closest: the distance of the two closest characters, for comparison.
        title: the title, which says what was measured.
        movement: the label of the horizontal axis, which says what is moved.
        file: the file to write; its suffix is replaced.

    Returns:
        The files written.
    """
    from matplotlib.figure import Figure  # slow to import, and not needed to train

    with paper_style():
        figure = Figure(figsize=(PAGE, 3.2), layout="constrained")
        axes = figure.add_subplot()
        x, low, high = np.repeat(radii, 2)[1:], np.repeat(certified, 2)[1:], np.repeat(resisting, 2)[:-1]
        axes.fill_between(x, low, high, color=GREY, alpha=0.12, linewidth=0)  # fills up to the corners of the steps
        axes.plot(radii, certified, color=BLUE, label="certified")
        axes.step(
            radii, resisting, where="post", color=VERMILION, linestyle=(0, (5, 1.6)), label="not changed by an attack"
        )
        axes.axvline(closest, color=GREY, linestyle=":", label="distance of the two closest characters")
        axes.set_xscale("log")
        log_ticks(axes.xaxis, radii[0], radii[-1])
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel(movement)
        axes.set_ylabel("share of predictions that stay")
        axes.set_title(textwrap.fill(title, 110))
        if not any(certified):
            axes.annotate("no finite certificate: every certified radius is 0", (0.02, 0.04), xycoords="axes fraction")
        figure.legend(loc="outside lower center", ncols=3)
        return save(figure, file)
