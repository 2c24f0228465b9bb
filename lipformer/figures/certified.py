"""What a certificate buys: the share of predictions that stay, by radius."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from lipformer.figures.style import BLUE, GREY, VERMILION


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

    The truth lies between the curves: below the one there is a proof, above the other a counterexample.

    Args:
        radii: increasing, above 0.
        certified: share certified for each radius.
        resisting: share that an attack at each radius did not change.
        closest: distance of the two closest characters, for scale.
        title: what was measured.
        movement: what moves, for the axis.
        file: where to; its suffix is replaced.

    Returns:
        The files written.
    """
    from matplotlib.figure import Figure  # heavy, and needed by nobody who only trains

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    axes.fill_between(radii, certified, resisting, step="post", color=GREY, alpha=0.12, linewidth=0)
    axes.plot(radii, certified, color=BLUE, linewidth=1.8, label="certified")
    axes.step(
        radii, resisting, where="post", color=VERMILION, linestyle="--", linewidth=1.8, label="not changed by an attack"
    )
    axes.axvline(closest, color=GREY, linestyle=":", linewidth=1.2, label="distance of the two closest characters")
    axes.set_xscale("log")
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel(movement)
    axes.set_ylabel("share of predictions that stay")
    axes.set_title(textwrap.fill(title, 90), fontsize=9)
    axes.grid(True, color=GREY, alpha=0.2, linewidth=0.6)
    if not any(certified):
        axes.annotate("no finite certificate: every certified radius is 0", (0.02, 0.04), xycoords="axes fraction")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    written = [file.with_suffix(suffix) for suffix in (".png", ".pdf")]
    for path in written:
        figure.savefig(path, dpi=200, metadata={"CreationDate": None} if path.suffix == ".pdf" else None)
    return written
