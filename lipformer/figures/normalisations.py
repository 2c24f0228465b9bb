"""The figure of a normalisation's Lipschitz constants by width: upper bounds, and lower bounds that a search found."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lipformer.figures.style import BLUE, GREEN, GREY, ORANGE, PAGE, VERMILION, letters, paper_style, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Row:
    """The constants of a normalisation for one width and one norm, as ``study=layer_norm`` measures them.

    Attributes:
        kind: the name of the normalisation.
        p: the norm, ``inf`` or ``2``.
        width: D.
        loose: the bound by row sums of the Jacobian; None in the 2-norm.
        exact: the layer's constant.
        found: the largest local constant that the search met.
        median: the median, over the starts, of the local constants at which the searches ended.
        apart: the largest local constant at inputs in which one coordinate differs from the others, which are equal.
        constructed: the local constant at an input that is known to be steepest.
    """

    kind: str
    p: str
    width: int
    loose: float | None
    exact: float
    found: float
    median: float
    apart: float
    constructed: float


def norm_constants(rows: Sequence[Row], name: str, file: Path) -> list[Path]:
    """Draw a normalisation's constants in the inf-norm, and in both norms the share of them that a search finds.

    Args:
        rows: one for each norm and width, of one kind of normalisation, by increasing width.
        name: of the kind, for the title.
        file: the file to write; its suffix is replaced.

    Returns:
        The files written.
    """
    from matplotlib.figure import Figure  # slow to import, and not needed to train

    inf, two = ([row for row in rows if row.p == p] for p in ("inf", "2"))
    with paper_style():
        figure = Figure(figsize=(PAGE, 2.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        widths = [row.width for row in inf]
        left.plot(
            widths, [row.loose for row in inf], color=ORANGE, linestyle=(0, (5, 1.6)), label="bound from row sums"
        )
        left.plot(widths, [row.exact for row in inf], color=BLUE, label="exact constant")
        left.plot(
            widths, [row.found for row in inf], color=VERMILION, marker="s", linestyle="", label="steepest input found"
        )
        left.plot(
            widths, [row.apart for row in inf], color=GREEN, linestyle=(0, (1.2, 1.2)), label="one coordinate apart"
        )
        left.set_ylim(bottom=0)
        left.set_ylabel("constant · √ε / max |γ|")
        left.set_title(f"{letters(2)[0]} {name} in the inf-norm")
        left.legend(loc="upper left")
        # The markers of the 2-norm are larger, so that they are seen around the others where both shares are 1.
        _draw_shares(right, two, "2-norm", color=BLUE, marker="o", markersize=6)
        _draw_shares(right, inf, "inf-norm", color=VERMILION, marker="s", markersize=3)
        right.axhline(1, color=GREY, linewidth=0.6, linestyle=":")
        right.set_ylim(0, 1.05)
        right.set_ylabel("found / exact constant")
        right.set_title(f"{letters(2)[1]} How much of it the search finds")
        right.legend(loc="lower left")
        for axes in (left, right):
            _width_axis(axes, widths)
        return save(figure, file)


def _draw_shares(axes: "Axes", rows: Sequence[Row], norm: str, **style: Any) -> None:
    """Draw the share of the constant that the best start of the search found, and that half of its starts reached."""
    widths = [row.width for row in rows]
    axes.plot(widths, [row.found / row.exact for row in rows], label=f"{norm}, best start", **style)
    hollow = {"markerfacecolor": "white", "linestyle": (0, (1.2, 1.2)), **style}
    axes.plot(widths, [row.median / row.exact for row in rows], label=f"{norm}, median of starts", **hollow)


def _width_axis(axes: "Axes", widths: Sequence[int]) -> None:
    """Make the horizontal axis logarithmic, with powers of two as ticks."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log", base=2)
    ticks = [2**i for i in range(16) if widths[0] / 1.5 <= 2**i <= widths[-1]]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("width D")
