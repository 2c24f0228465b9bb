"""The colours and dashes of the runs, and an empty plot in the style of the page."""

from collections.abc import Sequence
from typing import Any

from bokeh.models import (
    BasicTicker,
    BoxZoomTool,
    DataRange1d,
    Grid,
    HoverTool,
    LinearAxis,
    LinearScale,
    LogAxis,
    LogScale,
    LogTickFormatter,
    NoOverlap,
    NumeralTickFormatter,
    PanTool,
    Plot,
    Range1d,
    ResetTool,
    SaveTool,
    Toolbar,
    WheelZoomTool,
)
from bokeh.palettes import Viridis256

from lipformer.figures.palette import OKABE_ITO

LIGHTENED = ("#4FB0E8", "#F0803C", "#2FC49A", "#DE9BC1", "#F2B632", "#8ACBF2", "#EDEDED")
"""The palette for a dark page: lightened, so that each colour has a contrast of at least 3 to the page."""
COLOURS = tuple(zip(OKABE_ITO, LIGHTENED, strict=True))
"""The colours of the runs, each for a light page and for a dark page."""
DASHES = ((), (7, 3), (2, 2), (8, 3, 2, 3), (12, 4))
"""The dashes of the runs. Their number has no factor in common with that of the colours, so 35 runs look different."""
FONT = "system-ui, sans-serif"
TOOLTIP = (
    f"display:grid;grid-template-columns:auto auto;gap:0 .75em;font:12px/1.5 {FONT};font-variant-numeric:tabular-nums;"
    "color:var(--ink)"
)


def run_style(number: int) -> dict[str, Any]:
    """Return the colours (light, dark) and the dash of the run with this number."""
    return {"colours": COLOURS[number % len(COLOURS)], "dash": list(DASHES[number % len(DASHES)])}


def value_colours(count: int, *, ordered: bool) -> list[tuple[str, str]]:
    """Return colours (light, dark) for the values of a key: those of runs, or a row for ordered values."""
    if not ordered or count < 3:
        return [COLOURS[place % len(COLOURS)] for place in range(count)]
    shades = [place / (count - 1) for place in range(count)]
    return [(Viridis256[round(215 * shade)], Viridis256[round(85 + 170 * shade)]) for shade in shades]


def empty_plot(*, log: bool, height: int) -> Plot:
    """Return a plot that has axes, a grid and tools, but no data.

    Its x axis is set by the page's script, as the reader may choose what it counts, and so are the colours of text and
    lines, which depend on the reader's mode.

    Args:
        log: whether the vertical axis is logarithmic.
        height: in pixels; the width is that of the page's column.
    """
    plot = Plot(
        x_range=Range1d(start=0, end=1),
        y_range=DataRange1d(only_visible=True),
        y_scale=LogScale() if log else LinearScale(),
        height=height,
        sizing_mode="stretch_width",
        toolbar=Toolbar(logo=None, autohide=True),
        toolbar_location="above",
        min_border_right=16,
        border_fill_color=None,
        background_fill_color=None,
        outline_line_color=None,
    )
    below = LinearAxis(ticker=BasicTicker(desired_num_ticks=4))
    below.update(formatter=NumeralTickFormatter(format="0,0"))
    # Between 0.001 and 1000 a decimal number is easier to read than a power of ten.
    left = LogAxis(formatter=LogTickFormatter(min_exponent=3)) if log else LinearAxis()
    for axis in (below, left):
        axis.update(
            axis_label_text_font=FONT,
            axis_label_text_font_size="12px",
            axis_label_text_font_style="normal",
            major_label_text_font=FONT,
            major_label_text_font_size="12px",
            minor_tick_line_color=None,
            major_tick_in=0,
            major_label_policy=NoOverlap(),
        )
    plot.add_layout(below, "below")
    plot.add_layout(left, "left")
    plot.add_layout(Grid(dimension=1, ticker=left.ticker))
    zoom = BoxZoomTool()
    plot.add_tools(zoom, PanTool(), WheelZoomTool(), ResetTool(), SaveTool())
    plot.toolbar.active_drag = zoom
    return plot


def hover(name: str, rows: Sequence[tuple[str, str]]) -> HoverTool:
    """Return a tool that describes what lies under the pointer, in the colours of the page.

    Args:
        name: by which the script of the page finds the tool and gives it its renderers.
        rows: pairs of a label and the value in Bokeh's notation.
    """
    cells = "".join(f'<span style="color:var(--muted)">{what}</span><span>{value}</span>' for what, value in rows)
    return HoverTool(
        name=name,
        renderers=[],
        visible=False,
        line_policy="nearest",
        formatters={"@values": "printf"},
        tooltips=f'<div style="{TOOLTIP}">{cells}</div>',
    )
