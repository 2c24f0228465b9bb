"""evaluate.py study=layer_norm: numbers that are known in closed form, its files, and a sweep of studies."""

import csv
import json
import math

import pytest
import torch
from PIL import Image
from programs import evaluate

from lipformer.figures import norm_constants
from lipformer.figures.normalisations import Row
from lipformer.modules.normalisations import LayerNorm
from lipformer.studies import layer_norm as study
from lipformer.studies.layer_norm import KINDS, Scale, claims_of, local_constants, measure, search_starts

SMALL = Scale((3, 8), starts=4, steps=40)
FILES = {
    "claims.html",
    "claims.json",
    "constants.csv",
    "evaluate.log",
    "layer_norm.pdf",
    "layer_norm.png",
    "status.json",
}


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(study.SCALES, "quick", SMALL)


def row(**changes):
    values = {"kind": "layer_norm", "p": "inf", "width": 3, "loose": 2.0, "exact": 1.5, "found": 1.4}
    return Row(**{**values, "median": 1.2, "apart": 0.7, "constructed": 1.5, **changes})


def test_the_jacobian_is_that_of_the_closed_form():
    layer = LayerNorm(5, eps=0.5).double()
    x = torch.tensor([0.3, -1.0, 2.0, 0.1, 0.7], dtype=torch.float64)
    z, tau = x - x.mean(), (x.var(correction=0) + 0.5).sqrt()
    known = (torch.eye(5, dtype=torch.float64) - 1 / 5 - z[:, None] * z / (5 * tau**2)) / tau
    for p in (2, math.inf):
        expected = torch.linalg.matrix_norm(known, p).item()
        assert local_constants(layer, x[None], p).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("width", [2, 3, 8])
@pytest.mark.parametrize("p", [2, math.inf])
def test_small_widths_have_known_constants(width, p):
    """2(D - 1)/D in the inf-norm and 1 in the 2-norm, at constant tokens, to which a search leads."""
    measured = measure("layer_norm", p, width, Scale((width,), starts=6, steps=100), seed=0)
    known = 2 * (width - 1) / width if p == math.inf else 1.0
    assert measured.exact == pytest.approx(known, rel=1e-12)
    assert measured.constructed == pytest.approx(known, rel=1e-12)
    assert measured.found == pytest.approx(known, rel=1e-4)
    assert measured.found <= known * (1 + 1e-12)
    assert measured.apart == pytest.approx(known, rel=1e-6)
    assert measured.median <= measured.found
    assert (measured.loose is None) == (p == 2)


def test_beyond_57_constant_tokens_are_not_the_steepest():
    """The constants of docs/mathematics.md, 10: 3.51 at 256."""
    measured = measure("layer_norm", math.inf, 256, Scale((256,), starts=4, steps=60), seed=0)
    assert measured.exact == pytest.approx(3.51, abs=5e-3)
    assert measured.constructed == pytest.approx(measured.exact, rel=1e-12)
    assert 2.2 < measured.found <= measured.exact
    assert measured.apart == pytest.approx(2 * 255 / 256, rel=1e-6)


def test_a_search_is_drawn_from_its_seed():
    assert torch.equal(search_starts(4, 8, seed=1), search_starts(4, 8, seed=1))
    assert not torch.equal(search_starts(4, 8, seed=1), search_starts(4, 8, seed=2))
    first, again = (measure("layer_norm", math.inf, 3, SMALL, seed=0) for _ in range(2))
    assert first == again


def test_scales_reach_from_3_to_512():
    for scale in study.SCALES.values():
        assert (scale.widths[0], scale.widths[-1]) == (3, 512)
    assert study.SCALES["full"].starts == 50


def test_a_bound_that_is_too_small_fails():
    rows = [row(), row(p="2", loose=None)]
    assert {claim.verdict for claim in claims_of(rows)} == {"holds", "measured"}
    wrong = [row(exact=1.3, constructed=1.3), row(p="2", loose=None)]
    assert [claim.verdict for claim in claims_of(wrong)].count("fails") == 1
    wrong = [row(loose=1.39), row(p="2", loose=None)]
    assert [claim.verdict for claim in claims_of(wrong)].count("fails") == 1
    wrong = [row(constructed=1.49), row(p="2", loose=None)]
    assert [claim.verdict for claim in claims_of(wrong)].count("fails") == 1


def test_files_and_table(small, monkeypatch, tmp_path, capsys):
    folder = tmp_path / "out"
    assert evaluate(monkeypatch, "study=layer_norm", "study.scale=quick", f"hydra.run.dir={folder}") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert {file.name for file in folder.iterdir()} == FILES
    with (folder / "constants.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(line["p"], line["width"]) for line in rows] == [("inf", "3"), ("inf", "8"), ("2", "3"), ("2", "8")]
    claims = json.loads((folder / "claims.json").read_text())
    assert {claim["verdict"] for claim in claims} == {"holds", "measured"}
    assert {tuple(claim["seeds"]) for claim in claims} == {(0,)}
    assert all(claim["claim"] in out for claim in claims)
    assert Image.open(folder / "layer_norm.png").size > (1000, 400)
    assert (folder / "layer_norm.pdf").read_bytes().startswith(b"%PDF")


def test_a_claim_that_fails_does_not_end_the_program_otherwise(small, monkeypatch, tmp_path, capsys):
    """The study has finished; what it found is in the table."""
    broken = KINDS["layer_norm"]._replace(loose=lambda width: 1.0)
    monkeypatch.setitem(KINDS, "layer_norm", broken)
    assert evaluate(monkeypatch, "study=layer_norm", f"hydra.run.dir={tmp_path / 'out'}") == 0
    assert "fails" in capsys.readouterr().out
    assert '<span class="badge fails">' in (tmp_path / "out" / "claims.html").read_text()


def test_a_sweep_of_studies_ends_with_an_overview(small, monkeypatch, tmp_path, capsys):
    """As `make figures` has it."""
    options = [f"hydra.sweep.dir={tmp_path / 'figures'}", "hydra.sweep.subdir=${hydra:runtime.choices.study}"]
    assert evaluate(monkeypatch, "-m", "study=layer_norm", "study.scale=quick", *options) == 0
    page = (tmp_path / "figures" / "claims.html").read_text()
    assert '<h2 id="study-1-title">layer_norm</h2>' in page
    assert "data:image/png;base64," in page
    assert f"claims and figures: {tmp_path / 'figures' / 'claims.html'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "words"),
    [("study.scale=huge", "study.scale=huge: it must be one of quick, full"), ("study.seed=-1", "study.seed=-1")],
)
def test_wrong_options(option, words, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert evaluate(monkeypatch, "study=layer_norm", option) == 2
    assert words in capsys.readouterr().err


def test_the_figure_of_one_width(tmp_path):
    files = norm_constants([row(), row(p="2", loose=None)], "LayerNorm", tmp_path / "figure.png")
    assert [file.name for file in files] == ["figure.png", "figure.pdf"]
