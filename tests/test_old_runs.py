"""Run folders of version 0.1.0 load, evaluate, continue and report as they did (tests/old_runs/README.md)."""

import copy
import csv
import json
import platform
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from programs import evaluate, train

from lipformer import certify, load_run
from lipformer.assembly.old_configs import rename_weights
from lipformer.report.tables import certificate_table, differences_today
from lipformer.runs.plain_files import read_config
from lipformer.runs.record import read_record
from lipformer.training.resume import carry_metrics

OLD_RUNS = Path(__file__).parent / "old_runs"
EXPECTED = json.loads((OLD_RUNS / "expected.json").read_text())
NAMES = sorted(EXPECTED)
FIGURE = 1e-5
"""Nats per character by which float32 may differ from one machine to another."""


def _changes(name: str) -> list[str]:
    """What the command line has to say about where the run's text is; the built-in one differs between Pythons."""
    if name != "certified":
        return [f"data.train={OLD_RUNS / 'text.txt'}"]
    if not platform.python_version().startswith("3.11."):
        pytest.skip("the built-in text of the run is that of Python 3.11")
    return []


@pytest.mark.parametrize("name", NAMES)
def test_model_gives_the_same_logits_and_certificate(name):
    expected = EXPECTED[name]
    run = load_run(OLD_RUNS / name, which="last")
    model = run.model.double()
    with torch.no_grad():
        logits = model(torch.tensor([expected["ids"]]))[0, -1]
    torch.testing.assert_close(logits, torch.tensor(expected["logits"], dtype=torch.float64), rtol=1e-9, atol=1e-9)
    assert run.step == expected["step"]
    certificate = certify(model)
    assert certificate.trunk == pytest.approx(float(expected["trunk"]), rel=1e-9)
    bounds = {row.name: row.bound for row in certificate.rows}
    rows = {{"head": "unembedding"}.get(row, row): float(bound) for row, bound in expected["rows"].items()}
    assert bounds == pytest.approx(rows, rel=1e-9)
    assert list(bounds) == list(rows)


@pytest.mark.parametrize("name", NAMES)
def test_it_evaluates_to_the_same_figures(name, tmp_path, monkeypatch):
    for kind, split in [("best", "valid"), ("last", "test")]:
        folder = tmp_path / kind
        options = [f"checkpoint={OLD_RUNS / name}", f"which={kind}", f"split={split}", *_changes(name)]
        assert evaluate(monkeypatch, *options, f"hydra.run.dir={folder}") == 0
        metrics = json.loads((folder / "metrics.json").read_text())
        prefix, expected = {"valid": "val", "test": "test"}[split], EXPECTED[name][f"{kind}/{split}"]
        assert metrics[f"{prefix}/nats_per_char"] == pytest.approx(expected["nats_per_char"], abs=FIGURE)
        assert metrics[f"{prefix}/tokens"] == expected["tokens"]
        assert metrics["protocol"] == expected["protocol"]


@pytest.mark.parametrize("name", NAMES)
def test_it_continues_to_the_same_weights(name, tmp_path, monkeypatch):
    expected = EXPECTED[name]["resumed"]
    folder = tmp_path / "continued"
    changes = _changes(name)
    options = [f"trainer.max_steps={expected['steps']}", *(["data=text_files", *changes] if changes else [])]
    assert train(monkeypatch, f"resume={OLD_RUNS / name}", *options, f"hydra.run.dir={folder}") == 0
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["val/nats_per_char"] == pytest.approx(expected["nats_per_char"], abs=1e-3)
    assert metrics["tokens"] == expected["tokens"]
    run = load_run(folder, which="last")
    assert run.step == expected["steps"]
    with torch.no_grad():
        logits = run.model.double()(torch.tensor([EXPECTED[name]["ids"]]))[0, -1]
    torch.testing.assert_close(logits, torch.tensor(expected["logits"], dtype=torch.float64), rtol=1e-2, atol=1e-2)
    assert _watched(folder) == sorted(metric.replace("/head/", "/unembedding/") for metric in _watched(OLD_RUNS / name))


def _watched(folder: Path) -> list[str]:
    """Names of what telemetry measures, layer by layer, in the order of the file."""
    with (folder / "metrics.csv").open(newline="") as lines:
        return [name for name in next(csv.reader(lines)) if name.startswith(("stability/", "certificate/"))]


@pytest.mark.parametrize("name", NAMES)
def test_what_was_called_head_is_read_as_the_unembedding(name, tmp_path):
    """The layer in metrics.csv and metrics.json, of an old run alone: a model of one's own keeps its names."""
    record = read_record(OLD_RUNS / name)
    for metrics in (record.series, record.metrics):
        assert not [metric for metric in metrics if "/head/" in metric]
        assert "stability/unembedding/gradient_norm" in metrics
    assert "unembedding" in [row["name"] for row in record.certificate["rows"]]
    assert "unembedding" in [row[0] for row in certificate_table(record, 0).rows]
    shutil.copytree(OLD_RUNS / name, tmp_path / "own", ignore=shutil.ignore_patterns("checkpoints"))
    with (tmp_path / "own" / "config.yaml").open("a") as config:
        config.write("model:\n  _target_: my_package.Model\n")
    assert "stability/head/gradient_norm" in read_record(tmp_path / "own").series


@pytest.mark.parametrize("target", ["lipformer.model.CharTransformer", "lipformer.lstm.CharLSTM"])
def test_a_run_between_the_versions_is_read_as_one_of_the_first(target, tmp_path):
    """Before the layer was renamed, a configuration could name the model already, by an earlier path."""
    shutil.copytree(OLD_RUNS / "convex", tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    with (tmp_path / "run" / "config.yaml").open("a") as config:
        config.write(f"model:\n  _target_: {target}\n")
    assert read_record(tmp_path / "run").series.keys() == read_record(OLD_RUNS / "convex").series.keys()
    (tmp_path / "new").mkdir()
    carry_metrics(tmp_path / "new", tmp_path / "run" / "checkpoints" / "last.ckpt", 1000, validated=True)
    header = (tmp_path / "new" / "metrics.csv").read_text().partition("\n")[0]
    assert "stability/unembedding/gradient_norm" in header
    assert "/head/" not in header


@pytest.mark.parametrize("name", NAMES)
def test_what_has_only_moved_does_not_differ_in_a_report(name):
    then = read_record(OLD_RUNS / name)
    now = replace(then, config=load_run(OLD_RUNS / name).config)
    assert differences_today([then, now]) == {}
    assert "lr" in differences_today([then, replace(now, config={**now.config, "lr": 1})])
    assert differences_today([then, replace(now, config={})])["lr"][1] == ""


@pytest.mark.parametrize("name", NAMES)
def test_a_renamed_option_keeps_its_value(name):
    stored = load_run(OLD_RUNS / name, which="last").config["callbacks"]["stability"]
    written = read_config(OLD_RUNS / name / "config.yaml")["callbacks"]["stability"]
    assert stored["expensive_every_n_steps"] == written["dear_every_n_steps"]
    assert stored.keys() == {{"dear_every_n_steps": "expensive_every_n_steps"}.get(key, key) for key in written}


def test_only_a_model_of_ours_has_its_weights_renamed():
    config = {"model": {"_target_": "my_package.Model", "reads": []}}
    weights = {"model.head.weight": 1, "model.heads.weight": 2}
    rename_weights({"lipformer": {"config": config}, "state_dict": weights})
    assert list(weights) == ["model.head.weight", "model.heads.weight"]
    rename_weights({"lipformer": {"config": {}}, "state_dict": weights})
    assert weights == {"model.heads.weight": 2, "model.unembedding.weight": 1}
    weights = {"model.head.bias": 1}
    rename_weights({"lipformer": {"config": {"model": {"_target_": "lipformer.lstm.CharLSTM"}}}, "state_dict": weights})
    assert weights == {"model.unembedding.bias": 1}


@pytest.mark.parametrize(
    "altered",
    [
        {"lipformer": {"config": "text"}, "state_dict": {}},
        {"lipformer": {"config": {"model": 1}}, "state_dict": {}},
        {"lipformer": {"config": {"model": {"_target_": ["a"]}}}, "state_dict": {}},
        {"lipformer": {"config": {}}, "state_dict": {1: 2}},
        {"lipformer": {"config": {}}},
    ],
)
def test_an_altered_checkpoint_is_left_to_its_reader(altered):
    before = copy.deepcopy(altered)
    rename_weights(altered)
    assert altered == before


def test_they_are_reported_beside_each_other(tmp_path, monkeypatch):
    folder = tmp_path / "report"
    assert evaluate(monkeypatch, "study=report", f"study.runs='{OLD_RUNS}/*'", f"hydra.run.dir={folder}") == 0
    page = (folder / "report.html").read_text()
    records = [read_record(OLD_RUNS / name) for name in NAMES]
    assert all(record.series and record.certificate and record.outcome for record in records)
    for name, record in zip(NAMES, records, strict=True):
        assert name in page
        assert f"{record.outcome.best:.4f}" in page
