"""Figures: what is written, in which style, and that nobody else's style changes."""

import itertools
import math
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from lipformer.figures import certified_share, compare_runs, draw_run
from lipformer.figures.axes import Horizontal, horizontal_axis
from lipformer.figures.lines import INFINITY
from lipformer.figures.panels import bounds_of_a_run
from lipformer.figures.style import (
    COLUMN,
    LOOKS,
    PAGE,
    PNG_DPI,
    depth_colors,
    log_ticks,
    looks,
    paper_style,
    power,
    save,
)
from lipformer.runs.folder import Outcome
from lipformer.runs.quantities import find_quantity
from lipformer.runs.record import RunRecord, Series, read_record

# Machado, Oliveira and Fernandes (2009), severity 1: what a reader without one kind of cones sees, in linear RGB.
VISIONS = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}


@pytest.fixture(autouse=True)
def no_warnings():
    """A layout that does not fit, a logarithm of nothing: matplotlib and NumPy only warn of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("error", RuntimeWarning)
        yield


@pytest.fixture
def figures(monkeypatch):
    """Instead of writing them, lay figures out, which takes a third of the time; list them."""
    found = []

    def laid_out(figure, file):
        figure.draw_without_rendering()
        found.append(figure)
        return [file]

    monkeypatch.setattr("lipformer.figures.run.save", laid_out)
    monkeypatch.setattr("lipformer.figures.comparison.save", laid_out)
    return found


def metrics(depth=3, rows=30, every=50, seed=0):
    """What a run logs, name -> (steps, values)."""
    chance = np.random.default_rng(seed)
    steps = np.arange(every - 1, rows * every, every, dtype=float)
    dear = steps[9::10]
    fall = np.exp(-3 * steps / steps[-1])
    found = {
        "train/nats_per_char": (steps, 1.5 + 1.6 * fall + 0.02 * chance.random(rows)),
        "val/nats_per_char": (dear, 1.6 + 1.6 * fall[9::10]),
        "train/gradient_norm": (steps, 0.3 + fall),
        "stability/total/gradient_norm": (steps, 0.3 + 3 * fall),
        "stability/total/gradient_norm_clipped": (steps, np.minimum(1, 0.3 + 3 * fall)),
        "stability/total/update_ratio": (steps, 0.01 * fall),
        "stability/unembedding/update_ratio": (steps, 0.02 * fall),
        "stability/trunk/local_lipschitz": (dear, 2 + dear),
        "certificate/trunk/mixed": (dear, 1e5 * (1 + dear)),
    }
    for i in range(depth):
        found |= {
            f"stability/blocks.{i}.attention.branch/entropy_share": (steps, 0.9 - 0.2 * i + 0.05 * chance.random(rows)),
            f"stability/blocks.{i}/output_min": (steps, -3.0 - i - chance.random(rows)),
            f"stability/blocks.{i}/output_max": (steps, 3.0 + i + chance.random(rows)),
            f"stability/blocks.{i}.attention/branch_gain": (steps, fall / (i + 1)),
            f"stability/blocks.{i}.feedforward/branch_gain": (steps, 0.5 + 0.1 * chance.random(rows)),
        }
    return found


def record(name="run", tokens=950.0, status="finished", **options):
    series = {
        metric: Series(steps, (steps + 1) * tokens, values) for metric, (steps, values) in metrics(**options).items()
    }
    return RunRecord(Path("/runs") / name, {"name": name}, Outcome(status), {}, series, None, None)


def changed(run, change, names=""):
    """Return the record with other values in the series whose names contain `names`."""
    series = {
        name: Series(one.steps, one.tokens, change(one.values.copy()) if names in name else one.values)
        for name, one in run.series.items()
    }
    return RunRecord(run.folder, run.config, run.outcome, run.metrics, series, None, None)


def without(run, *names):
    series = {name: one for name, one in run.series.items() if not any(part in name for part in names)}
    return RunRecord(run.folder, run.config, run.outcome, run.metrics, series, None, None)


def sizes(folder):
    found = {}
    for file in folder.glob("*.png"):
        with Image.open(file) as image:
            found[file.stem] = tuple(pixels / PNG_DPI for pixels in image.size)
    return found


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn")
    return folder / "figures", draw_run(record(status="diverged"), folder / "figures")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    runs = [record("a"), changed(record("b", seed=1, depth=2), lambda values: values * math.inf, "certificate")]
    return folder, compare_runs(runs, folder)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    radii, title = [1e-3, 1e-2, 1e-1], "of a corpus " * 12
    return folder, certified_share(
        radii, [1, 0.5, 0], [1, 1, 0.5], closest=0.5, title=title, movement="m", file=folder / "share.png"
    )


def test_a_run_is_drawn_for_a_column_and_for_a_page(drawn):
    folder, written = drawn
    assert [file.name for file in written] == ["learning.png", "learning.pdf", "stability.png", "stability.pdf"]
    assert sorted(folder.iterdir()) == sorted(written)
    found = sizes(folder)
    assert found["learning"][0] == pytest.approx(COLUMN, abs=0.01)
    assert found["stability"][0] == pytest.approx(PAGE, abs=0.01)
    assert all(height < 9 for _, height in found.values()), "a page is not longer"


def test_runs_are_drawn_for_a_page(compared):
    folder, written = compared
    assert {file.name for file in written} == {
        f"{n}.{s}" for n in ("learning", "stability", "layers") for s in ("png", "pdf")
    }
    assert all(file.stat().st_size > 1000 for file in written)
    assert all(width == pytest.approx(PAGE, abs=0.01) for width, _ in sizes(folder).values())


def test_fonts_are_embedded_as_truetype(drawn, compared, shared, tmp_path):
    for file in [*drawn[1], *compared[1], *shared[1]]:
        if file.suffix == ".pdf":
            page = file.read_bytes()
            assert b"/Type3" not in page
            assert b"/FontFile2" in page
    figure = Figure()
    figure.text(0, 0, "a")
    figure.savefig(tmp_path / "usual.pdf")
    assert b"/Type3" in (tmp_path / "usual.pdf").read_bytes(), "matplotlib's default is what this test looks for"


def test_the_same_record_gives_the_same_bytes_in_another_process(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    write_run(folder)
    here = draw_run(read_record(folder), tmp_path / "here")
    program = """if True:
        import sys
        from pathlib import Path
        import lipformer.figures
        assert "matplotlib" not in sys.modules
        from lipformer.runs.record import read_record
        folder, there = map(Path, sys.argv[1:])
        lipformer.figures.draw_run(read_record(folder), there)
        assert "matplotlib.pyplot" not in sys.modules
    """
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    subprocess.run(
        [sys.executable, "-c", program, str(folder), str(tmp_path / "there")],
        check=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
        timeout=300,
    )
    for file in here:
        assert file.read_bytes() == (tmp_path / "there" / file.name).read_bytes(), file.name
        assert b"CreationDate" not in file.read_bytes()


def write_run(folder):
    """Write a run folder's text files."""
    found = metrics(depth=2)
    rows = {}
    for name, (steps, values) in found.items():
        for step, value in zip(steps, values, strict=True):
            rows.setdefault(int(step), {})[name] = value
    names = ["train/tokens", *found]
    lines = [",".join(["step", *names])]
    for step, row in sorted(rows.items()):
        row["train/tokens"] = 950 * (step + 1)
        lines.append(",".join([str(step), *(str(row.get(name, "")) for name in names)]))
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    (folder / "config.yaml").write_text("name: written\n")


def test_matplotlibs_parameters_stay_the_users(tmp_path):
    with matplotlib.rc_context({"font.size": 31, "axes.grid": False}):
        before = dict(matplotlib.rcParams)
        run = without(record(depth=1, rows=12), "nats", "entropy", "update", "trunk")
        draw_run(run, tmp_path)
        assert dict(matplotlib.rcParams) == before
        with paper_style():
            assert matplotlib.rcParams["font.size"] < 10
            assert matplotlib.rcParams["pdf.fonttype"] == 42
        with pytest.raises(KeyError), paper_style():
            raise KeyError
        assert dict(matplotlib.rcParams) == before
        in_between = (tmp_path / "stability.png").read_bytes()
    draw_run(run, tmp_path)
    assert (tmp_path / "stability.png").read_bytes() == in_between, "the style does not build on the user's"


def stems(written):
    return {file.stem for file in written}


def test_what_a_run_does_not_tell_is_not_drawn(figures, tmp_path):
    run = record(depth=1, rows=10)
    empty = without(run, "")
    assert draw_run(empty, tmp_path) == []
    assert compare_runs([empty, empty], tmp_path) == []
    assert compare_runs([], tmp_path) == []
    old = without(run, "stability", "certificate", "gradient")
    assert stems(draw_run(old, tmp_path)) == {"learning"}
    assert stems(compare_runs([old, old], tmp_path)) == {"learning"}
    assert stems(compare_runs([old, run], tmp_path)) == {"learning", "stability", "layers"}
    assert stems(draw_run(without(run, "nats"), tmp_path)) == {"stability"}
    part = without(run, "nats", "entropy", "output", "gain", "trunk", "update")
    assert stems(draw_run(part, tmp_path)) == {"stability"}
    assert figures[-1].get_size_inches()[0] == COLUMN, "one panel is a column wide"
    assert [axes.get_title(loc="left") for axes in figures[-1].axes] == ["gradient"]


def only(value):
    return lambda values: np.full_like(values, value)


def with_gaps(values):
    values[1::3], values[2::3] = math.inf, math.nan
    return values


@pytest.mark.parametrize(
    "change",
    [only(math.nan), only(math.inf), only(0.0), only(1e240), only(1e300), with_gaps],
    ids=["nan", "inf", "zero", "huge", "too_huge", "gaps"],
)
def test_no_value_is_too_wild(change, figures, tmp_path):
    run = changed(record(depth=2, rows=10), change)
    written = draw_run(run, tmp_path) + compare_runs([run, record(depth=1, rows=10)], tmp_path)
    known = (change(np.ones(3)) < 1e250).any()
    assert len(written) == (5 if known else 3), "only the other run is drawn where this one has no number"


@pytest.mark.parametrize("options", [{"rows": 10, "depth": 1}, {"rows": 10, "depth": 24}, {"rows": 400, "depth": 2}])
def test_short_long_shallow_and_deep_runs(options, figures, tmp_path):
    assert stems(draw_run(record(**options), tmp_path)) == {"learning", "stability"}
    assert len([axes for axes in figures[1].axes if axes.get_title(loc="left")]) == 6


def test_a_run_of_one_row(figures, tmp_path):
    run = record(depth=2)
    first = {name: Series(one.steps[:1], one.tokens[:1], one.values[:1]) for name, one in run.series.items()}
    run = RunRecord(run.folder, {}, None, {}, first, None, None)
    assert stems(draw_run(run, tmp_path)) == {"learning", "stability"}
    assert stems(compare_runs([run, run], tmp_path)) == {"learning", "stability", "layers"}


@pytest.mark.parametrize("place", [0, 1], ids=["begin", "end"])
@pytest.mark.parametrize("value", [1e-3, 1.0, 3.2, 8.5, 42.0, 9.5e4, 1e240])
def test_one_constant_below_infinity_has_ticks_around_it(value, place):
    tokens = np.array([1e3 * place])
    trunk = {"measured": Series(tokens, tokens, np.array([value])), "2": Series(tokens, tokens, np.array([math.inf]))}
    axes = Figure(layout="constrained").add_subplot()
    bounds_of_a_run(axes, trunk, find_quantity("local_lipschitz"), Horizontal("tokens", 1.0, True, 1e3))
    low, high = axes.get_ylim()
    ticks = [tick for tick in axes.yaxis.get_majorticklocs() if low <= tick <= high]
    assert 3 <= len(ticks) <= 6
    assert ticks[0] < 1.1 * value
    assert ticks[-1] > 0.9 * value

    def height(y):
        return axes.transAxes.inverted().transform(axes.transData.transform((0.0, y)))[1]

    assert 0.3 < height(value) < 0.6
    assert max(map(height, ticks)) < INFINITY - 0.06
    texts = {text.get_text(): text for text in axes.texts}
    assert texts.keys() == {power(value), "∞"}
    assert texts[power(value)].get_horizontalalignment() == ("right" if place else "left"), "inside of the panel"


def test_the_axis_is_in_tokens_where_every_run_says_them():
    axis = horizontal_axis([record(tokens=950, rows=30), record(tokens=100, rows=60)])
    assert (axis.label, axis.unit, axis.end) == ("tokens seen (thousands)", 1e3, 1425.0)
    assert horizontal_axis([record(tokens=2e4)]).label == "tokens seen (millions)"
    mute = record(tokens=math.nan)
    axis = horizontal_axis([record(), mute])
    assert (axis.label, axis.end) == ("optimizer steps", 1499.0)
    np.testing.assert_array_equal(axis.of(mute.series["train/nats_per_char"])[:2], [49, 99])
    assert horizontal_axis([]).end > 0


def lab(rgb, vision):
    """CIE Lab of an sRGB colour as somebody sees it."""
    linear = np.where(np.array(rgb) <= 0.04045, np.array(rgb) / 12.92, ((np.array(rgb) + 0.055) / 1.055) ** 2.4)
    linear = np.clip(VISIONS[vision] @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    ratio = xyz / np.array([0.95047, 1.0, 1.08883])
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def closest(colors, vision):
    return min(np.linalg.norm(lab(a, vision) - lab(b, vision)) for a, b in itertools.combinations(colors, 2))


@pytest.mark.parametrize("vision", VISIONS)
def test_colors_stay_apart_for_colour_blind_readers(vision):
    colors = [to_rgb(look.color) for look in LOOKS]
    assert closest([*colors, (1, 1, 1)], vision) > 15, "from each other and from the paper; 2.3 is just noticed"
    assert closest([(0.8, 0.2, 0.2), (0.3, 0.5, 0.2)], vision) > 15 or vision != "usual", "red and green are, as usual"
    steps = [lab(color[:3], vision)[0] for color in depth_colors(8)]
    assert np.diff(steps).min() > 3, "layers get lighter with depth, in grey too"


def test_the_simulation_makes_red_and_green_alike():
    red, green = (0.75, 0.25, 0.2), (0.35, 0.5, 0.2)
    assert closest([red, green], "usual") > 60
    assert closest([red, green], "deuteranopia") < 25


def test_prints_in_grey_differ_by_dashes_and_markers():
    for count in (1, len(LOOKS), 2 * len(LOOKS)):
        found = looks(count)
        assert len({(look.color, str(look.dashes)) for look in found}) == count
        assert len({(look.color, look.marker) for look in found}) == count
    assert len({str(look.dashes) for look in LOOKS}) == len({look.marker for look in LOOKS}) == len(LOOKS)


@pytest.mark.parametrize(
    ("low", "high"), [(1.0, 1.0), (1.0, 1.2), (7.0, 45.0), (0.5, 3.2), (0.002, 0.4), (1.0, 1e9), (1e-7, 1e250)]
)
def test_logarithmic_axes_have_a_few_labels_each_its_own(low, high):
    axes = Figure().add_subplot()
    axes.set_yscale("log")
    axes.plot([low, high])
    log_ticks(axes.yaxis, low, high)
    bottom, top = axes.get_ylim()
    shown = [tick for tick in axes.yaxis.get_majorticklocs() if bottom <= tick <= top]
    assert 2 <= len(shown) <= 9
    labels = [power(tick) for tick in shown]
    assert len(set(labels)) == len(labels)
    assert not len(axes.yaxis.get_minorticklocs())


def test_powers_are_spelled_shortly():
    assert [power(x) for x in (1, 0.001, 250, 0.0005, 1e-12, 3e20, 1.5e4)] == [
        "1",
        "0.001",
        "250",
        "5·10⁻⁴",
        "10⁻¹²",
        "3·10²⁰",
        "1.5·10⁴",
    ]


def test_panels_do_not_overlap(figures, tmp_path):
    runs = [record(f"a_name_of_some_length_{i}", seed=i, depth=6, rows=12) for i in range(2)]
    draw_run(runs[0], tmp_path)
    compare_runs(runs, tmp_path)
    assert len(figures) == 5
    with paper_style():
        for figure in figures:
            width, height = figure.bbox.size
            for axes in figure.axes:
                box = axes.get_tightbbox()
                assert box.x0 > -2
                assert box.y0 > -2
                assert box.x1 < width + 2
                assert box.y1 < height + 2
                title, legend = axes._left_title.get_window_extent(), axes.get_legend()
                if legend is not None:
                    assert not title.overlaps(legend.get_window_extent()), axes._left_title.get_text()
            for a, b in itertools.combinations([axes.get_tightbbox() for axes in figure.axes], 2):
                inner = max(0, min(a.x1, b.x1) - max(a.x0, b.x0)) * max(0, min(a.y1, b.y1) - max(a.y0, b.y0))
                assert inner < 0.02 * min(a.width * a.height, b.width * b.height)


def test_the_certified_share_is_drawn_for_a_page(shared):
    folder, written = shared
    assert [file.name for file in written] == ["share.png", "share.pdf"]
    assert sizes(folder)["share"][0] == pytest.approx(PAGE, abs=0.01)
    assert re.match(rb"%PDF", written[1].read_bytes())


def test_save_makes_the_folder_and_names_both_files(tmp_path):
    folder = tmp_path / "not" / "there"
    with paper_style():
        figure = Figure(figsize=(1, 2), layout="constrained")
        figure.add_subplot().plot([1, 2])
        assert save(figure, folder / "f.png") == [folder / "f.png", folder / "f.pdf"]
    assert sizes(folder)["f"] == (1, 2)
