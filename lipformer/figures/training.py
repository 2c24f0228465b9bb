"""How a run learned and how stable it was, and several runs beside each other."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lipformer.figures.style import (
    BLUE,
    COLUMN,
    GREY,
    PAGE,
    VERMILION,
    Look,
    depth_colors,
    letters,
    log_ticks,
    looks,
    paper_style,
    save,
)
from lipformer.run_record import RunRecord, Series, layer_series, name_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

MARKS = 10
"""Markers on a line: enough to tell it from others, few enough to see it."""
LARGEST = 1e250
"""What is drawn at the most; a larger value is drawn as an infinite one."""
LOG_FROM = 20.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""


@dataclass(frozen=True)
class Horizontal:
    """The horizontal axis: tokens seen, or optimizer steps where a run does not say how many tokens it saw.

    Attributes:
        label: with the unit.
        unit: what one tick unit is in tokens or steps.
        tokens: whether it shows tokens.
        end: the last of them, in units.
    """

    label: str
    unit: float
    tokens: bool
    end: float

    def of(self, series: Series) -> np.ndarray:
        """Return (rows,), where the rows of a series stand."""
        return (series.tokens if self.tokens else series.steps) / self.unit

    def limit(self, axes: "Axes") -> None:
        """Let `axes` show the whole run."""
        axes.set_xlim(0, 1.02 * self.end)


@dataclass(frozen=True)
class Panel:
    """One of the panels of a figure, in which there is something to draw.

    Attributes:
        title: what it shows.
        draw: draws it.
    """

    title: str
    draw: Callable[["Axes"], None]


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
        if _curves(record):
            written += save(_learning_of_a_run(record, horizontal), folder / "learning.png")
        panels = _panels_of_a_run(record, horizontal)
        if panels:
            written += save(_grid(panels, horizontal), folder / "stability.png")
    return written


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
        panels = _learning_panels(records, horizontal)
        if panels:
            written += save(_with_legend(_grid(panels, horizontal), names), folder / "learning.png")
        panels = _panels_of_runs(records, horizontal)
        if panels:
            written += save(_with_legend(_grid(panels, horizontal), names), folder / "stability.png")
        maps = _maps_of_runs(records, names, horizontal)
        if maps is not None:
            written += save(maps, folder / "layers.png")
    return written


def horizontal_axis(records: Sequence[RunRecord]) -> Horizontal:
    """Return the axis that all series of all records can be drawn over."""
    series = list(chain.from_iterable(record.series.values() for record in records))
    tokens = bool(series) and all(np.isfinite(one.tokens).all() for one in series)
    end = max((float(x[-1]) for x in (one.tokens if tokens else one.steps for one in series) if len(x)), default=1.0)
    unit, name = (1e6, "millions") if end >= 2e6 else (1e3, "thousands") if end >= 2e3 else (1.0, "")
    label = "tokens seen" if tokens else "optimizer steps"
    return Horizontal(f"{label} ({name})" if name else label, unit, tokens, end / unit or 1.0)


# ---- learning


def _curves(record: RunRecord) -> dict[str, Series]:
    """Return what there is of ``train`` and ``valid``, in nats per character."""
    found = {}
    for name, metric in (("train", "train/nats_per_char"), ("valid", "val/nats_per_char")):
        if metric in record.series and _some(record.series[metric]):
            found[name] = record.series[metric]
    return found


def _learning_of_a_run(record: RunRecord, horizontal: Horizontal) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(COLUMN, 2.3), layout="constrained")
    axes = figure.add_subplot()
    curves = _curves(record)
    if "train" in curves:
        axes.plot(horizontal.of(curves["train"]), _finite(curves["train"].values), color=SKY_LINE, label="train")
    if "valid" in curves:
        valid = curves["valid"]
        axes.plot(horizontal.of(valid), _finite(valid.values), color=VERMILION, marker="o", label="valid")
    if record.status == "diverged":
        end = max(horizontal.of(one)[-1] for one in curves.values())
        axes.axvline(end, color=GREY, linestyle=":", label="diverged")
    axes.set_ylim(*_nats_limits([record], horizontal))
    horizontal.limit(axes)
    axes.set_xlabel(horizontal.label)
    axes.set_ylabel("nats per character")
    bits = axes.secondary_yaxis("right", functions=(_to_bits, _to_nats))
    bits.set_ylabel("bits per character")
    _legend_above(axes)
    return figure


def _to_bits(nats: Any) -> Any:
    return nats / math.log(2)


def _to_nats(bits: Any) -> Any:
    return bits * math.log(2)


def _learning_panels(records: Sequence[RunRecord], horizontal: Horizontal) -> list[Panel]:
    limits = _nats_limits(records, horizontal)

    def panel(name: str) -> Panel:
        def draw(axes: "Axes") -> None:
            _lines(axes, [_curves(record).get(name) for record in records], horizontal)
            axes.set_ylim(*limits)
            axes.set_ylabel("nats per character")

        return Panel(name, draw)

    return [panel(name) for name in ("train", "valid") if any(name in _curves(record) for record in records)]


def _nats_limits(records: Sequence[RunRecord], horizontal: Horizontal) -> tuple[float, float]:
    """Return limits that leave room for where the runs end up: the fall of the first steps is cut off.

    So is what lies far above where they began, as a run that diverges does.
    """
    curves = [(horizontal.of(one), _finite(one.values)) for record in records for one in _curves(record).values()]
    end = max((x[-1] for x, _ in curves), default=1.0)
    begun = max((y[np.isfinite(y)][0] for _, y in curves), default=1.0)
    late = np.concatenate([y[(x >= 0.03 * end) & np.isfinite(y)] for x, y in curves] or [np.ones(1)])
    late = late if len(late) else np.array([begun])
    low, high = float(late.min()), float(min(late.max(), 1.1 * begun))
    margin = max(0.06 * (high - low), 0.01 * abs(high)) or 0.05
    return low - margin, high + margin


# ---- the stability of one run


def _panels_of_a_run(record: RunRecord, horizontal: Horizontal) -> list[Panel]:
    """Return what there is to draw; panels with a colour bar stand on the left, so that the others are wider."""
    left, right = [], []
    entropies = _blocks(layer_series(record, "entropy_share"))
    if entropies:
        left.append(Panel("attention entropy", lambda axes: _entropy_map(axes, entropies, horizontal)))
    ranges = _ranges(record)
    if ranges:
        left.append(Panel("range of a block's output", lambda axes: _by_depth(axes, [ranges], horizontal, RANGE)))
    gains = [_gains(record, kind) for kind in BRANCHES]
    if any(gains):
        left.append(Panel("branches", lambda axes: _by_depth(axes, gains, horizontal, GAIN, BRANCHES)))
    trunk = _trunk(record)
    if trunk:
        right.append(Panel("trunk", lambda axes: _trunk_of_a_run(axes, trunk, horizontal)))
    gradients = _gradients(record)
    if gradients:
        right.append(Panel("gradient", lambda axes: _gradient_of_a_run(axes, gradients, horizontal)))
    updates = _known(layer_series(record, "update_ratio"))
    if updates:
        right.append(Panel("updates", lambda axes: _updates_of_a_run(axes, updates, horizontal)))
    return [panel for row in zip_longest(left, right) for panel in row if panel is not None]


def _entropy_map(axes: "Axes", layers: dict[str, Series], horizontal: Horizontal) -> None:
    from matplotlib.colors import Normalize

    mesh = _map(axes, layers, horizontal, Normalize(0, 1))
    bar = axes.figure.colorbar(mesh, ax=axes, pad=0.02, aspect=14)
    bar.set_label(ENTROPY)
    bar.outline.set_visible(False)
    axes.set_ylabel("block")


def _by_depth(
    axes: "Axes",
    families: Sequence[dict[str, Series]],
    horizontal: Horizontal,
    label: str,
    names: Sequence[str] = (),
) -> None:
    """Draw a line for each block, dark to light; families of them differ in dashes."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.lines import Line2D

    blocks = sorted({block for family in families for block in family}, key=_number)
    colors = dict(zip(blocks, depth_colors(len(blocks)), strict=True))
    for family, dash in zip(families, FAMILIES, strict=False):
        for block, series in family.items():
            axes.plot(horizontal.of(series), _finite(series.values), color=colors[block], linestyle=dash, linewidth=0.9)
    _scale(axes, [one.values for family in families for one in family.values()])
    axes.set_ylabel(label)
    if len(blocks) > 1:
        edges = np.arange(len(blocks) + 1) - 0.5
        shades = ScalarMappable(BoundaryNorm(edges, len(blocks)), ListedColormap([colors[block] for block in blocks]))
        bar = axes.figure.colorbar(shades, ax=axes, pad=0.02, aspect=14, drawedges=False)
        bar.set_ticks(_few(len(blocks)), labels=[blocks[i] for i in _few(len(blocks))])
        bar.ax.tick_params(which="both", length=0)
        bar.set_label("block")
        bar.outline.set_visible(False)
    if len(families) > 1:
        handles = [Line2D([], [], color=GREY, linestyle=dash) for dash in FAMILIES]
        axes.legend(handles, list(names), **ABOVE, ncols=2)


def _trunk_of_a_run(axes: "Axes", trunk: dict[str, Series], horizontal: Horizontal) -> None:
    bounds = [name for name in trunk if name != "measured"]
    for (name, series), look in zip(trunk.items(), looks(len(trunk)), strict=True):
        _line(axes, series, horizontal, look, label=name if name == "measured" else f"certificate ({name})")
        _at_the_top(axes, series, horizontal, look)
    if len(bounds) == 1 and "measured" in trunk:  # the truth lies between
        low, high = trunk["measured"], trunk[bounds[0]]
        _, one, other = np.intersect1d(low.steps, high.steps, return_indices=True)
        between = (_finite(low.values)[one], _finite(high.values)[other])
        axes.fill_between(horizontal.of(low)[one], *between, color=GREY, alpha=0.1, linewidth=0)
    _scale(axes, [series.values for series in trunk.values()], always_log=True)
    axes.set_ylabel("Lipschitz constant")
    _legend_above(axes)


def _gradient_of_a_run(axes: "Axes", gradients: dict[str, Series], horizontal: Horizontal) -> None:
    for (name, series), color, dash in zip(gradients.items(), (BLUE, VERMILION), FAMILIES, strict=False):
        axes.plot(horizontal.of(series), _finite(series.values), color=color, linestyle=dash, linewidth=0.9, label=name)
    _scale(axes, [series.values for series in gradients.values()])
    axes.set_ylabel(GRADIENT)
    _legend_above(axes)


def _updates_of_a_run(axes: "Axes", updates: dict[str, Series], horizontal: Horizontal) -> None:
    total = updates.get("total")
    layers = [series for layer, series in updates.items() if layer != "total"]
    if layers:
        steps = sorted(set(np.concatenate([series.steps for series in layers])))
        rows = np.full((len(layers), len(steps)), np.nan)
        x = np.full(len(steps), np.nan)
        for row, series in zip(rows, layers, strict=True):
            place = np.searchsorted(steps, series.steps)
            row[place], x[place] = _finite(series.values), horizontal.of(series)
        known = np.isfinite(rows).any(0)
        low, high = np.nanmin(rows[:, known], 0), np.nanmax(rows[:, known], 0)
        axes.fill_between(x[known], low, high, color=BLUE, alpha=0.18, linewidth=0, label="range over layers")
    if total is not None:
        axes.plot(horizontal.of(total), _finite(total.values), color=BLUE, linewidth=0.9, label="all")
    _scale(axes, [series.values for series in updates.values()])
    axes.set_ylabel(UPDATE)
    _legend_above(axes)


# ---- the stability of several runs


def _panels_of_runs(records: Sequence[RunRecord], horizontal: Horizontal) -> list[Panel]:
    def panel(title: str, label: str, lines: Sequence[Series | None]) -> Panel:
        def draw(axes: "Axes") -> None:
            _lines(axes, lines, horizontal)
            _scale(axes, [one.values for one in lines if one is not None])
            axes.set_ylabel(label)

        return Panel(title, draw)

    panels = []
    candidates = (
        (
            "attention entropy, mean of the layers",
            ENTROPY,
            [_mean_entropy(r) for r in records],
        ),
        ("range of a block's output, largest", RANGE, [_reduced(_ranges(r), np.nanmax) for r in records]),
        ("gradient, before clipping", GRADIENT, [_gradients(r).get("before clipping") for r in records]),
        ("update of all parameters", UPDATE, [_known(layer_series(r, "update_ratio")).get("total") for r in records]),
        ("branches, least gain", GAIN, [_least_gain(r) for r in records]),
    )
    for title, label, lines in candidates:
        if any(line is not None for line in lines):
            panels.append(panel(title, label, lines))
    trunks = [_trunk(record) for record in records]
    if any(trunks):
        panels.insert(2, Panel("trunk", lambda axes: _trunk_of_runs(axes, trunks, horizontal)))
    return panels


def _trunk_of_runs(axes: "Axes", trunks: Sequence[dict[str, Series]], horizontal: Horizontal) -> None:
    from matplotlib.lines import Line2D

    for i, (trunk, look) in enumerate(zip(trunks, looks(len(trunks)), strict=True)):
        for name, series in trunk.items():
            if name == "measured":
                _line(axes, series, horizontal, look, turn=i / len(trunks))
            else:
                thin = replace(look, marker="")
                _line(axes, series, horizontal, thin, linewidth=0.6)
                _at_the_top(axes, series, horizontal, look, turn=i / len(trunks), linewidth=0.6)
    _scale(axes, [series.values for trunk in trunks for series in trunk.values()], always_log=True)
    axes.set_ylabel("Lipschitz constant")
    handles = [Line2D([], [], color=GREY, marker="o"), Line2D([], [], color=GREY, linewidth=0.6)]
    axes.legend(handles, ["measured", "certificate"], **ABOVE, ncols=2)


def _maps_of_runs(records: Sequence[RunRecord], names: Sequence[str], horizontal: Horizontal) -> "Figure | None":
    """Draw a row of maps for each run that has some, in colours of the same scale down a column."""
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.figure import Figure

    quantities: list[tuple[str, list[dict[str, Series]]]] = [
        (ENTROPY, [_blocks(layer_series(record, "entropy_share")) for record in records]),
        ("range of the blocks' outputs", [_ranges(record) for record in records]),
        ("rms(branch) / rms(skip), attention", [_gains(record, "attention") for record in records]),
    ]
    quantities = [quantity for quantity in quantities if any(quantity[1])]
    rows = [i for i in range(len(records)) if any(layers[i] for _, layers in quantities)]
    if not rows:
        return None
    figure = Figure(figsize=(PAGE, 0.9 + 1.15 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), len(quantities), sharex=True, squeeze=False)
    for column, (label, layers) in enumerate(quantities):
        shared = [one.values for i in rows for one in layers[i].values()]
        low, high = (0.0, 1.0) if label == ENTROPY else _limits(shared)
        scale = Normalize(low, high) if label == ENTROPY else LogNorm(low, high)
        mesh = None
        for row, i in enumerate(rows):
            axes = grid[row, column]
            horizontal.limit(axes)
            if layers[i]:
                mesh = _map(axes, layers[i], horizontal, scale)
            else:
                axes.set_axis_off()
            if column == 0:
                axes.set_ylabel("block")
        assert mesh is not None  # one of the rows has the quantity
        bar = figure.colorbar(mesh, ax=list(grid[:, column]), location="top", pad=0.02, aspect=24)
        bar.set_label(f"{letters(column + 1)[-1]} {label}")
        bar.outline.set_visible(False)
        if label != ENTROPY:
            log_ticks(bar.ax.xaxis, low, high)
        grid[-1, column].set_xlabel(horizontal.label)
    for row, i in enumerate(rows):
        grid[row, 0].set_title(names[i])
    return figure


# ---- what is drawn of a record


def _known(layers: dict[str, Series]) -> dict[str, Series]:
    """Leave out layers of which nothing is finite."""
    return {layer: series for layer, series in layers.items() if _some(series)}


def _some(series: Series) -> bool:
    return bool(np.isfinite(_finite(series.values)).any())


def _blocks(layers: dict[str, Series], kind: str | None = None) -> dict[str, Series]:
    """Return the series of blocks by the block's number; of the residuals named `kind` alone where it is given."""
    found = {}
    for layer, series in _known(layers).items():
        match layer.split("."):
            case ["blocks", number, *rest] if kind is None or rest == [kind]:
                found[number] = series
    return found


def _ranges(record: RunRecord) -> dict[str, Series]:
    """Return by block the largest entry of its output less the smallest."""
    highest, lowest = layer_series(record, "output_max"), layer_series(record, "output_min")
    found = {}
    for layer, high in highest.items():
        match layer.split("."):
            case ["blocks", number] if layer in lowest:
                low = lowest[layer]
                _, one, other = np.intersect1d(high.steps, low.steps, return_indices=True)
                values = _finite(high.values)[one] - _finite(low.values)[other]
                found[number] = Series(high.steps[one], high.tokens[one], values)
    return _known(found)


def _gains(record: RunRecord, kind: str) -> dict[str, Series]:
    return _blocks(layer_series(record, "branch_gain"), kind)


def _least_gain(record: RunRecord) -> Series | None:
    return _reduced(_known(layer_series(record, "branch_gain")), np.nanmin)


def _gradients(record: RunRecord) -> dict[str, Series]:
    """Return the norm of the whole gradient before and after clipping."""
    names = ("stability/total/gradient_norm", "train/gradient_norm")
    before = next((record.series[name] for name in names if name in record.series), None)
    after = record.series.get("stability/total/gradient_norm_clipped")
    return _known({k: v for k, v in {"before clipping": before, "after": after}.items() if v is not None})


def _trunk(record: RunRecord) -> dict[str, Series]:
    """Return the trunk's certificates by norm and what was ``measured``; nothing where all of it is infinite."""
    measured = layer_series(record, "local_lipschitz").get("trunk")
    found = {} if measured is None else {"measured": measured}
    found |= {name.rpartition("/")[2]: series for name, series in record.series.items() if name.startswith(TRUNK)}
    found = {name: series for name, series in found.items() if not np.isnan(series.values).all()}
    return found if _known(found) else {}


def _mean_entropy(record: RunRecord) -> Series | None:
    layers = _known(layer_series(record, "entropy_share"))
    total = layers.pop("total", None)
    return total if total is not None else _reduced(layers, np.nanmean)


def _reduced(layers: dict[str, Series], reduce: Callable[..., Any]) -> Series | None:
    """Return one value for each step at which all layers have one."""
    if not layers:
        return None
    first, *others = layers.values()
    steps = first.steps
    for series in others:
        steps = np.intersect1d(steps, series.steps)
    values = np.stack([_finite(series.values)[np.searchsorted(series.steps, steps)] for series in layers.values()])
    known = np.isfinite(values).any(0)
    place = np.searchsorted(first.steps, steps[known])
    return Series(first.steps[place], first.tokens[place], reduce(values[:, known], 0)) if known.any() else None


# ---- drawing


def _grid(panels: Sequence[Panel], horizontal: Horizontal) -> "Figure":
    """Return a figure with panels in two columns; in one where there is one."""
    from matplotlib.figure import Figure

    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(PAGE if columns == 2 else COLUMN, 1.85 * rows), layout="constrained")
    for i, (panel, letter) in enumerate(zip(panels, letters(len(panels)), strict=True)):
        axes = figure.add_subplot(rows, columns, i + 1)
        panel.draw(axes)
        axes.set_title(f"{letter} {panel.title}" if len(panels) > 1 else panel.title)
        horizontal.limit(axes)
        axes.locator_params(axis="x", nbins=6)
        if i + columns >= len(panels):
            axes.set_xlabel(horizontal.label)
    return figure


def _with_legend(figure: "Figure", names: Sequence[str]) -> "Figure":
    """Add, below, which line is which run; make room for it."""
    from matplotlib.lines import Line2D

    width, height = figure.get_size_inches()
    columns = max(1, min(len(names), int(width * 17 / (max(map(len, names)) + 9))))  # 17 characters are an inch
    figure.set_size_inches(width, height + 0.14 * math.ceil(len(names) / columns) + 0.05)
    handles = [Line2D([], [], color=k.color, linestyle=k.dashes, marker=k.marker) for k in looks(len(names))]
    figure.legend(handles, names, loc="outside lower center", ncols=columns)
    return figure


def _lines(axes: "Axes", lines: Sequence[Series | None], horizontal: Horizontal) -> None:
    for i, (series, look) in enumerate(zip(lines, looks(len(lines)), strict=True)):
        if series is not None:
            _line(axes, series, horizontal, look, turn=i / len(lines))


def _line(
    axes: "Axes",
    series: Series,
    horizontal: Horizontal,
    look: Look,
    *,
    turn: float = 0.0,
    linewidth: float = 0.9,
    label: str | None = None,
) -> None:
    """Draw a line; `turn`, in [0, 1), moves its markers, so that those of lines on each other are seen."""
    every = max(1, len(series.values) // MARKS)
    axes.plot(
        horizontal.of(series),
        _finite(series.values),
        color=look.color,
        linestyle=look.dashes,
        marker=look.marker,
        markevery=(int(turn * every), every),
        linewidth=linewidth,
        label=label,
    )


def _at_the_top(
    axes: "Axes",
    series: Series,
    horizontal: Horizontal,
    look: Look,
    *,
    turn: float = 0.0,
    linewidth: float = 0.9,
) -> None:
    """Draw along the upper edge, which is marked as such, where a series is infinite."""
    infinite = _infinite(series.values)
    if infinite.any():
        every = max(1, len(infinite) // MARKS)
        axes.plot(
            horizontal.of(series),
            np.where(infinite, 1.0, np.nan),
            transform=axes.get_xaxis_transform(),
            clip_on=False,
            color=look.color,
            linestyle=look.dashes,
            marker=look.marker,
            markevery=(int(turn * every), every),
            linewidth=linewidth,
            scaley=False,
        )
        axes.annotate("∞", (1.0, 1.0), (2, 0), xycoords="axes fraction", textcoords="offset points", va="center")


def _map(axes: "Axes", layers: dict[str, Series], horizontal: Horizontal, scale: "Normalize") -> Any:
    """Draw layers by time; grey where nothing is known."""
    from matplotlib import colormaps

    steps = np.unique(np.concatenate([series.steps for series in layers.values()]))
    cells, x = np.full((len(layers), len(steps)), np.nan), np.full(len(steps), np.nan)
    for row, series in zip(cells, layers.values(), strict=True):
        place = np.searchsorted(steps, series.steps)
        row[place], x[place] = _finite(series.values), horizontal.of(series)
    colors = colormaps["viridis"].with_extremes(bad="#D0D0D0")
    edges = np.arange(len(layers) + 1) - 0.5
    mesh = axes.pcolormesh(_edges(x), edges, np.ma.masked_invalid(cells), norm=scale, cmap=colors, rasterized=True)
    axes.set_yticks(_few(len(layers)), labels=[list(layers)[i] for i in _few(len(layers))])
    axes.tick_params(axis="y", length=0)
    axes.grid(False)
    return mesh


def _edges(x: np.ndarray) -> np.ndarray:
    """Return (cells + 1,), the borders of cells around rising places."""
    if len(x) == 1:
        return np.array([x[0] - 0.5, x[0] + 0.5])
    middles = (x[1:] + x[:-1]) / 2
    return np.concatenate([[2 * x[0] - middles[0]], middles, [2 * x[-1] - middles[-1]]])


def _scale(axes: "Axes", values: Sequence[np.ndarray], always_log: bool = False) -> None:
    """Make the vertical axis logarithmic where the values span much of it."""
    every = np.concatenate(values or [np.ones(1)])
    known = every[np.isfinite(_finite(every))]
    positive = known[known > 0]
    if len(positive) and (always_log or positive.max() > LOG_FROM * positive.min()):
        axes.set_yscale("log")
        log_ticks(axes.yaxis, positive.min(), positive.max())
        if always_log and _infinite(every).any():  # they are drawn along the upper edge, well above all others
            low, high = axes.get_ylim()
            axes.set_ylim(low, high * (high / low) ** 0.12)


def _limits(values: Iterable[np.ndarray]) -> tuple[float, float]:
    """Return the ends of a logarithmic scale of colours."""
    known = np.concatenate([_finite(one) for one in values])
    known = known[known > 0]
    low, high = (float(known.min()), float(known.max())) if len(known) else (1.0, 1.0)
    return low, max(high, 1.01 * low)


def _legend_above(axes: "Axes") -> None:
    """Put the legend above the panel, where no line is."""
    handles, _ = axes.get_legend_handles_labels()
    if len(handles) > 1:
        axes.legend(**ABOVE, ncols=len(handles))


def _finite(values: np.ndarray) -> np.ndarray:
    """Replace by nan, which is not drawn, what is no number or too large for an axis with margins."""
    return np.where(np.abs(values) < LARGEST, values, np.nan)


def _infinite(values: np.ndarray) -> np.ndarray:
    return values >= LARGEST


def _few(count: int) -> list[int]:
    """Return which of `count` rows get a tick: all, or as many as there is room for."""
    return list(range(0, count, math.ceil(count / 8)))


def _number(block: str) -> tuple[int, str]:
    return (int(block) if block.isdigit() else -1, block)


FAMILIES: tuple[Any, ...] = ("-", (0, (3, 1.5)))
TRUNK = "certificate/trunk/"
BRANCHES = ("attention", "feedforward")
ENTROPY = "entropy / log n"
RANGE = "max − min"
GRADIENT = "Euclidean norm"
UPDATE = "‖update‖ / ‖parameters‖"
GAIN = "rms(branch) / rms(skip)"
SKY_LINE = "#8FC7EC"
ABOVE: dict[str, Any] = {
    "loc": "lower right",
    "bbox_to_anchor": (1.0, 1.0),
    "borderaxespad": 0.1,
    "borderpad": 0.0,
    "handlelength": 2.2,
}
