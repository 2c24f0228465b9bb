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
from matplotlib.figure import Figure
from PIL import Image

from lipformer.figures import certified_share, compare_runs, draw_run
from lipformer.figures.axes import horizontal_axis
from lipformer.figures.style import (
    COLUMN,
    PAGE,
    PNG_DPI,
    paper_style,
    save,
)
from lipformer.runs.outcome import Outcome
from lipformer.runs.record import RunRecord, Series, read_record


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
    expensive = steps[9::10]
    fall = np.exp(-3 * steps / steps[-1])
    found = {
        "train/nats_per_char": (steps, 1.5 + 1.6 * fall + 0.02 * chance.random(rows)),
        "val/nats_per_char": (expensive, 1.6 + 1.6 * fall[9::10]),
        "train/gradient_norm": (steps, 0.3 + fall),
        "stability/total/gradient_norm": (steps, 0.3 + 3 * fall),
        "stability/total/gradient_norm_clipped": (steps, np.minimum(1, 0.3 + 3 * fall)),
        "stability/total/update_ratio": (steps, 0.01 * fall),
        "stability/unembedding/update_ratio": (steps, 0.02 * fall),
        "stability/trunk/local_lipschitz": (expensive, 2 + expensive),
        "certificate/trunk/mixed": (expensive, 1e5 * (1 + expensive)),
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


def test_the_axis_is_in_tokens_where_every_run_says_them():
    axis = horizontal_axis([record(tokens=950, rows=30), record(tokens=100, rows=60)])
    assert (axis.label, axis.unit, axis.end) == ("tokens seen (thousands)", 1e3, 1425.0)
    assert horizontal_axis([record(tokens=2e4)]).label == "tokens seen (millions)"
    mute = record(tokens=math.nan)
    axis = horizontal_axis([record(), mute])
    assert (axis.label, axis.end) == ("optimizer steps", 1499.0)
    np.testing.assert_array_equal(axis.of(mute.series["train/nats_per_char"])[:2], [49, 99])
    assert horizontal_axis([]).end > 0


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
