"""Parts of a user's own that have forward alone: trained, evaluated, certified as infinite, watched, reported."""

import csv
import json
import math

import pytest
from programs import evaluate, train, write_text

OWN = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads, *, context, causal=True, dropout=0.0):
        super().__init__()
        self.map = nn.Linear(width, width)

    def forward(self, x):
        counts = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)
        return self.map(x.cumsum(1) / counts[:, None])


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.gain * x.tanh()


class FeedForward(nn.Module):
    def __init__(self, width, *, dropout=0.0):
        super().__init__()
        self.map = nn.Linear(width, width)

    def forward(self, x):
        return self.map(x).tanh()


class Residual(nn.Module):
    def __init__(self, branch, norm, width):
        super().__init__()
        self.inner, self.before = branch, norm(width)

    def forward(self, x):
        return x + self.inner(self.before(x))
"""
CHOICES = {"attention": "Attention", "norm": "Norm", "feedforward": "FeedForward", "residual": "Residual"}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with the parts, and the choices that name them."""
    (tmp_path / "own_parts.py").write_text(OWN)
    for group, name in CHOICES.items():
        file = tmp_path / "conf" / group / "own.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(f"_target_: own_parts.{name}\n")
    write_text(tmp_path / "text.txt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "groups", [*([group] for group in CHOICES), list(CHOICES)], ids=lambda groups: "+".join(groups)
)
def test_parts_with_forward_alone_train_and_are_certified_as_infinite(own, monkeypatch, groups):
    choices = [f"{group}=own" for group in groups]
    watched = (
        "callbacks=stability",
        "callbacks.stability.every_n_steps=1",
        "callbacks.stability.expensive_every_n_steps=3",
    )
    arguments = ("--config-dir=conf", "data.train=text.txt", "trainer.report=true", "hydra.run.dir=run")
    assert train(monkeypatch, *arguments, *watched, *choices) == 0
    log = (own / "run" / "train.log").read_text()
    assert "not measured any more" not in log
    assert (own / "run" / "report.html").is_file()
    with (own / "run" / "metrics.csv").open(newline="") as lines:
        row = [row for row in csv.DictReader(lines) if row["certificate/trunk/mixed"]][-1]
    assert row["certificate/trunk/mixed"] == "inf"
    assert math.isfinite(float(row["stability/blocks.0.attention/range_ratio"]))
    assert math.isfinite(float(row["stability/blocks.0.feedforward/local_lipschitz"]))
    assert math.isfinite(float(row["stability/blocks.0.feedforward/update_ratio"]))
    attends = "stability/blocks.0.attention.branch/entropy" in row
    assert attends == (not {"attention", "residual"} & set(groups))

    assert evaluate(monkeypatch, "checkpoint=run", "allow_targets=[own_parts]", "hydra.run.dir=evaluated") == 0
    options = ("checkpoint=run", "allow_targets=[own_parts]", "study=certify", "hydra.run.dir=certified")
    assert evaluate(monkeypatch, *options) == 0
    certificate = json.loads((own / "certified" / "certificate.json").read_text())
    assert certificate["trunk"] == certificate["logits"] == "inf"
    caveats = {row["name"]: row["caveat"] for row in certificate["rows"]}
    own_parts = {"attention": "attention.branch", "norm": "attention.norm", "feedforward": "feedforward.branch"}
    for group in groups:
        name = f"blocks.0.{own_parts.get(group, 'attention')}"
        if "residual" not in groups or group == "residual":
            assert caveats[name] == "no lipschitz_bound"
    if groups == ["attention"]:
        assert caveats["blocks.0.attention"] == "no lipschitz_bound: Attention"
