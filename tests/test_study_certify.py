"""evaluate.py study=certify: what it prints, writes and refuses."""

import csv
import io
import json
import logging
import math
import re
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from lipformer import certify
from lipformer.assembly.build import build_model
from lipformer.assembly.checkpoint import load_run
from lipformer.bounds.certificate import Certificate, Row
from lipformer.data.vocabulary import Vocabulary
from lipformer.program import cli
from lipformer.runs.outcome import read_outcome
from lipformer.studies.certify import certificate_table, share_curve

FILES = {
    "metrics.json",
    "certificate.json",
    "radii.csv",
    "certified_share.csv",
    "certified_share.png",
    "certified_share.pdf",
    "status.json",
    "evaluate.log",
    "environment.json",
}


@pytest.fixture
def study(monkeypatch, tmp_path, tiny_run, capsys):
    """Run evaluate.py on the tiny run in this process; return exit code, folder, stdout and stderr."""

    def run(*arguments, checkpoint=tiny_run):
        folder = tmp_path / f"evaluation_{len(list(tmp_path.iterdir()))}"
        monkeypatch.setenv(cli.FULL_ERROR, "0")
        options = [f"checkpoint={checkpoint}", f"hydra.run.dir={folder}", "accelerator=cpu", *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", ["evaluate.py", *options])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            cli.evaluate()
        out, err = capsys.readouterr()
        return exit_.value.code, folder, out, err

    return run


def rows(file):
    with file.open() as stream:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(stream)]


def checkpoint_of(tiny_run, file, **targets):
    """Write a checkpoint like the tiny run's, of an untrained model with other parts; return the file."""
    checkpoint = torch.load(tiny_run / "checkpoints" / "best.ckpt", weights_only=True)
    config = checkpoint["lipformer"]["config"]
    for group, target in targets.items():
        config[group] = {"_target_": f"lipformer.modules.{target}"}
    torch.manual_seed(0)
    model = build_model(config, len(Vocabulary.from_plain(checkpoint["lipformer"]["vocabulary"])))
    checkpoint["state_dict"] = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save(checkpoint, file)
    return file


def test_a_finite_certificate(study, tiny_run, tmp_path):
    parts = {"attention": "attention.TiedL2Attention", "norm": "normalisations.NoNorm"}
    checkpoint = checkpoint_of(tiny_run, tmp_path / "tied.ckpt", **parts)
    code, folder, out, err = study("study=certify", checkpoint=checkpoint)
    assert (code, err) == (0, "")
    assert {file.name for file in folder.iterdir()} == FILES
    run = load_run(checkpoint)
    certificate = certify(run.model.double())
    written = json.loads((folder / "certificate.json").read_text())
    assert written == json.loads(json.dumps(certificate.to_plain()))
    assert math.isfinite(certificate.trunk)
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["certificate/trunk/mixed"] == certificate.trunk
    assert metrics["certificate/logits/mixed"] == certificate.logits
    for row in certificate.rows:
        assert metrics[f"certificate/{row.name}/mixed"] == row.bound
        assert row.name.rpartition(".")[2] in out
        if row.role != "unembedding":
            assert metrics[f"measured/{row.name}/mixed"] <= row.bound * (1 + 1e-9)
    assert 0 < metrics["measured/trunk/mixed"] <= certificate.trunk

    lines = (tiny_run.parent / "text.txt").read_text().splitlines()[-10:]
    sentences = rows(folder / "radii.csv")
    assert [row["characters"] for row in sentences] == [len(line) + 1 for line in lines]
    assert all(0 <= row["smallest_radius"] <= row["median_radius"] for row in sentences)
    line = run.vocabulary.encode(lines[3])
    logits = run.model(torch.tensor([[run.vocabulary.end_id, *line]]))[0].detach()
    top = logits.topk(2).values
    norm = torch.linalg.matrix_norm(run.model.unembedding.weight, 2).item()
    simple = (top[:, 0] - top[:, 1]) / (math.sqrt(2) * norm * certificate.trunk)
    assert sentences[3]["smallest_radius"] >= simple.min().item() * (1 - 1e-6)

    curve = rows(folder / "certified_share.csv")
    for name in ("certified", "withstands_attack"):
        shares = [row[name] for row in curve]
        assert shares == sorted(shares, reverse=True)
        assert 0 <= shares[-1] < shares[0] <= 1
    assert all(row["certified"] <= row["withstands_attack"] + 0.2 for row in curve)  # of all, and of some sentences
    assert Image.open(folder / "certified_share.png").size > (1000, 500)
    assert (folder / "certified_share.pdf").read_bytes().startswith(b"%PDF")


def test_caches_of_matplotlib_are_no_news(caplog):
    """The first figure on a machine makes one of its fonts, and matplotlib would say so between the tables."""
    logging.getLogger("matplotlib.font_manager").warning("building the font cache")
    assert not caplog.records


def test_an_infinite_certificate_is_said_in_red_and_in_one_line(study, tiny_run, tmp_path):
    checkpoint = checkpoint_of(tiny_run, tmp_path / "post_norm.ckpt", residual="residual.PostNorm")
    code, folder, out, _ = study(
        "study=certify", "study.p=inf", "study.length=30", "max_length=30", checkpoint=checkpoint
    )
    assert code == 0
    assert {file.name for file in folder.iterdir()} == FILES
    written = json.loads((folder / "certificate.json").read_text())
    metrics = json.loads((folder / "metrics.json").read_text())
    assert (written["p"], written["length"], written["trunk"], written["logits"]) == ("inf", 30, "inf", "inf")
    assert metrics["certificate/trunk/inf"] is None
    assert metrics["measured/trunk/inf"] > 0
    assert out.count("every certified radius is 0") == 1
    assert "not Lipschitz" in out
    assert all(row["smallest_radius"] == row["median_radius"] == 0 for row in rows(folder / "radii.csv"))
    curve = rows(folder / "certified_share.csv")
    assert all(row["certified"] == 0 for row in curve)
    assert curve[0]["withstands_attack"] > 0.5


def test_infinity_is_red():
    """As a terminal that shows colour gets it, and nothing else is."""
    rows = (
        Row("blocks.0.attention", "PostNorm", math.inf, "trunk", ""),
        Row("unembedding", "Linear", 2.0, "unembedding", ""),
    )
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=200)
    console.print(certificate_table(Certificate(rows, math.inf, math.inf, 2, 8), {}))
    assert re.findall(r"\x1b\[1;31m *(.*?)\x1b", console.file.getvalue()) == ["inf", "inf", "inf"]


def test_figures_are_those_of_a_plain_evaluation(study):
    """And a plain one has nothing of the study."""
    _, plain, out, _ = study()
    assert {file.name for file in plain.iterdir()} == {
        "metrics.json",
        "status.json",
        "evaluate.log",
        "environment.json",
    }
    assert "ertif" not in out
    _, folder, out, _ = study("study=certify", "study.p=2")
    plain, certified = (json.loads((where / "metrics.json").read_text()) for where in (plain, folder))
    assert set(plain) < set(certified)
    assert certified["test/nats_per_char"] == pytest.approx(plain["test/nats_per_char"], rel=1e-5)
    assert {name: plain[name] for name in plain if "per_char" not in name} == {
        name: certified[name] for name in plain if "per_char" not in name
    }
    assert "Lipschitz certificate in the 2-norm, up to 64 tokens" in out
    assert read_outcome(folder).best == certified["test/nats_per_char"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("study=certfy", ["study=certfy", "did you mean certify?"]),
        ("study=certify study.p=3", ["study.p=3", "mixed, 2, inf"]),
        ("study=certify study.length=0", ["study.length=0", "at least 1"]),
        ("study=certify study.length=65", ["study=certify", "length=65", "the model reads at most 64"]),
        (
            "study=certify study.length=20",
            ["study.length=20", "beyond the certificate", "study.length=", "max_length=20"],
        ),
        ("study=certify generate.samples=1", ["generate.samples=1", "study=score"]),
    ],
)
def test_wrong_options(study, options, words):
    code, _, _, err = study(*options.split())
    assert code == 2
    assert len(err.splitlines()) == 1
    assert err.startswith("error: ")
    assert all(word in err for word in words), err


def test_a_diverged_model_is_an_error(study, tiny_run, tmp_path):
    checkpoint = torch.load(tiny_run / "checkpoints" / "last.ckpt", weights_only=True)
    checkpoint["state_dict"]["model.unembedding.bias"][0] = math.nan
    torch.save(checkpoint, tmp_path / "diverged.ckpt")
    code, _, _, err = study("study=certify", checkpoint=tmp_path / "diverged.ckpt")
    assert code == 2
    assert "its training diverged" in err


@pytest.mark.parametrize(
    ("certified", "attacked"),
    [
        ([0.0, 0.0], [math.inf, math.inf]),
        ([math.inf], [math.inf]),
        ([1e-20, 3e-20], [0.5, math.inf]),
        ([0.1, 0.2, 0.4], [0.5, 0.5, 0.7]),
    ],
)
def test_curves_hold_every_radius_exactly(certified, attacked):
    curve = share_curve(np.array(certified), np.array(attacked))
    assert all(radius > 0 and math.isfinite(radius) for radius, _, _ in curve)
    for radius, certain, withstands in curve:
        assert certain == sum(r >= radius for r in certified) / len(certified)
        assert withstands == sum(r > radius for r in attacked) / len(attacked)
        assert certain <= withstands
