"""The style of the figures: legible at the width of a column or a page, and in colours for colour-blind readers."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lipformer.figures.palette import OKABE_ITO
from lipformer.system.atomic import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.3, 6.75
"""Widths in inches: of one column of a two-column page, and of the whole page."""

BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK = OKABE_ITO
GREY = "#666666"

PNG_DPI = 200

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns about the caches that it makes on its first use
logging.getLogger("fontTools").setLevel(logging.ERROR)  # it logs each table of an embedded font


@dataclass(frozen=True)
class Look:
    """How one of several lines is drawn; colours, dashes and markers all differ, so that a print in grey is legible.

    Attributes:
        color: as matplotlib takes it.
        dashes: its line style.
        marker: its marker.
    """

    color: str
    dashes: Any
    marker: str


LOOKS: tuple[Look, ...] = (
    Look(BLUE, "-", "o"),
    Look(VERMILION, (0, (5, 1.6)), "s"),
    Look(GREEN, (0, (1.2, 1.2)), "^"),
    Look(PURPLE, (0, (5, 1.4, 1.2, 1.4)), "D"),
    Look(ORANGE, (0, (9, 2)), "v"),
    Look(SKY, (0, (2.6, 1.4)), "P"),
    Look(BLACK, (0, (5, 1.2, 1.2, 1.2, 1.2, 1.2)), "X"),
)
"""The looks of lines, in the order in which they are used."""

RC: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so that it is the same on every machine
    "font.size": 7,
    "mathtext.fontset": "dejavusans",
    "figure.titlesize": 8,
    "axes.titlesize": 7.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 4,
    "axes.labelsize": 7,
    "axes.labelpad": 2.5,
    "axes.linewidth": 0.5,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.limits": (-3, 4),
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.4,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": "black",
    "ytick.labelcolor": "black",
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "lines.linewidth": 1.1,
    "lines.markersize": 3,
    "lines.markeredgewidth": 0.6,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "legend.columnspacing": 1.2,
    "legend.borderaxespad": 0.3,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
    "image.cmap": "viridis",  # its lightness increases evenly, which colour-blind readers see too
    "pdf.fonttype": 42,  # TrueType: Type 3, the default, is refused by some publishers
    "ps.fonttype": 42,
}
"""Matplotlib's parameters that differ from its defaults."""


@contextmanager
def paper_style() -> Iterator[None]:
    """Draw and save in the project's style inside the block; matplotlib's parameters are the user's again after it."""
    from matplotlib import style  # slow to import, and not needed to train

    with style.context(["default", RC]):
        yield


def looks(count: int) -> list[Look]:
    """Return a look for each of `count` lines; from the eighth on, colours are reused with other dashes and markers."""
    many = len(LOOKS)
    return [
        Look(LOOKS[i % many].color, LOOKS[(i + i // many) % many].dashes, LOOKS[(i + i // many) % many].marker)
        for i in range(count)
    ]


def depth_colors(count: int) -> list[Any]:
    """Return colours from dark to light for layers in their order, the lightest still dark enough for a line."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.85 * i / max(count - 1, 1)) for i in range(count)]


def save(figure: "Figure", file: Path) -> list[Path]:
    """Write a figure as PNG and PDF, the same bytes each time.

    Args:
        figure: made within `paper_style`, in which it is also saved.
        file: the file to write; its suffix is replaced.

    Returns:
        The files written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    file.parent.mkdir(parents=True, exist_ok=True)
    image, page = file.with_suffix(".png"), file.with_suffix(".pdf")
    # `savefig` would compute the layout again for each of the two files, which takes most of the time.
    figure.set_dpi(PNG_DPI)
    with replacing(image) as stream:
        FigureCanvasAgg(figure).print_png(stream)
    figure.set_layout_engine("none")
    with replacing(page) as stream:
        FigureCanvasPdf(figure).print_pdf(stream, metadata={"CreationDate": None})
    return [image, page]


def log_ticks(axis: Any, low: float, high: float) -> None:
    """Give a logarithmic axis a few ticks with plain labels: powers of ten, and multiples of them on a short axis.

    Matplotlib's own labels are formulas; drawing them takes longer than the rest of the figure.

    Args:
        axis: a `matplotlib.axis.Axis`, or the axis of a colour bar.
        low: smallest value shown, above 0.
        high: largest value shown.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

    if high < 3 * low:
        axis.set_major_locator(MaxNLocator(5))  # chosen for what the axis shows: a single value has no range for ticks
    else:
        wide, close = high > 300 * low, high < 10 * low
        subs = (1.0,) if wide else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if close else (1.0, 2.0, 5.0)
        ticks = LogLocator(subs=subs, numticks=6).tick_values(low, high)
        axis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: power(value)))
    axis.set_minor_locator(NullLocator())


def power(value: float) -> str:
    """Return a short text for a positive number: in decimals near 1, else with a power of ten."""
    if 0.9e-3 < value < 1e4:
        return f"{value:.4g}"
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    ten = f"10{str(int(exponent)).translate(SUPERSCRIPTS)}"
    return ten if mantissa == "1.0" else f"{mantissa.removesuffix('.0')}·{ten}"


def letters(count: int) -> Sequence[str]:
    """Return the letters (a), (b), ... of the panels of a figure."""
    return [f"({chr(ord('a') + i)})" for i in range(count)]
