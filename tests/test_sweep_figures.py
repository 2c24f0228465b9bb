"""The figures of a sweep: which there are, in which size, and that cells and curves are those of its jobs."""

import warnings

import numpy as np
import pytest
from sweep_folders import KINDS, RATES, eighteen, grid, write_sweep

from lipformer.figures import draw_sweep
from lipformer.figures.style import PAGE
from lipformer.report.sweep.jobs import read_swept


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("error", RuntimeWarning)
        yield


@pytest.fixture
def figures(monkeypatch):
    """Instead of writing figures, lay them out and keep them, by the names of their files."""
    found = {}

    def laid_out(figure, file):
        figure.draw_without_rendering()
        found[file.stem] = figure
        return [file]

    monkeypatch.setattr("lipformer.figures.sweep.save", laid_out)
    return found


def texts(axes):
    return [text.get_text() for text in axes.texts]


def crosses(axes):
    return sum(len(line.get_xdata()) for line in axes.lines if line.get_marker() == "x")


def test_map_has_a_panel_for_each_attention(figures, tmp_path):
    draw_sweep(read_swept(eighteen(tmp_path / "sweep")), tmp_path / "figures")
    assert list(figures) == ["sweep_map", "sweep_curves"]
    *panels, bar = figures["sweep_map"].axes
    assert [panel.get_title(loc="left") for panel in panels] == [f"attention {kind}" for kind in KINDS]
    assert [label.get_text() for label in panels[0].get_xticklabels()] == list(RATES)
    assert [crosses(panel) for panel in panels] == [2, 0, 0]
    assert {"failed", "waiting"} <= set(texts(panels[2]))
    assert [sum(line.get_marker() == "*" for line in panel.lines) for panel in panels] == [1, 0, 0]
    assert sum("…" in text for text in texts(panels[1])) == 1
    cells = panels[0].collections[0].get_array()
    assert np.ma.getmaskarray(cells).sum() == 2
    assert "nats per character" in bar.get_ylabel()
    curves = figures["sweep_curves"]
    assert curves.get_size_inches()[0] == PAGE
    assert len([line for line in curves.axes[0].lines if line.get_marker() != "x"]) == 15
    assert crosses(curves.axes[0]) == 2
    names = [text.get_text() for text in curves.legends[0].get_texts()]
    assert names == [*(f"attention {kind}" for kind in KINDS), *(f"lr {rate}" for rate in RATES), "diverged"]


def test_one_key_is_drawn_as_lines_with_the_spread_over_seeds(figures, tmp_path):
    jobs = grid(lr=RATES, seed=("0", "1"))
    folder = write_sweep(tmp_path / "sweep", jobs, {4: "diverged"}, telemetry=False)
    draw_sweep(read_swept(folder), tmp_path / "figures")
    (panel,) = figures["sweep_map"].axes
    assert crosses(panel) == 1
    (bars,) = panel.containers
    segments = bars.lines[2][0].get_segments()
    assert [segment[0][1] < segment[1][1] for segment in segments] == [True, True, False]


@pytest.mark.parametrize("jobs", [[["lr=1"]], grid(attention=("tied_l2", "dot_product")), grid(seed=("0", "1"))])
def test_few_keys_are_drawn(figures, tmp_path, jobs):
    draw_sweep(read_swept(write_sweep(tmp_path / "sweep", jobs, telemetry=False)), tmp_path / "figures")
    assert list(figures) == (["sweep_curves"] if len(jobs) == 1 else ["sweep_map", "sweep_curves"])


def test_nothing_is_drawn_of_jobs_that_wait(figures, tmp_path):
    jobs = grid(lr=RATES)
    folder = write_sweep(tmp_path / "sweep", jobs, dict.fromkeys(range(3), "waiting"))
    assert draw_sweep(read_swept(folder), tmp_path / "figures") == []


def test_png_and_pdf_are_written(tmp_path):
    folder = write_sweep(tmp_path / "sweep", grid(lr=RATES, depth=("2", "6")), telemetry=False)
    written = draw_sweep(read_swept(folder), tmp_path / "figures")
    assert [file.name for file in written] == [
        "sweep_map.png",
        "sweep_map.pdf",
        "sweep_curves.png",
        "sweep_curves.pdf",
    ]
    assert all(file.stat().st_size > 1000 for file in written)
    assert b"/Type3" not in written[1].read_bytes()
