"""nan in a loss, a gradient, an activation or a weight of a run in a process of its own: what is good stays."""

import random

import pytest
import torch
from fault_trials import RUN, SEED, run_faulty, train_on
from programs import write_text

from lipformer.assembly.checkpoint import load_run, read_checkpoint
from lipformer.runs.outcome import read_outcome

STEP = {kind: random.Random(f"{SEED}{kind}").randint(4, 8) for kind in ("loss", "gradient", "activation", "weight")}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.mark.fault("nan")
@pytest.mark.parametrize("kind", [k if k == "gradient" else pytest.param(k, marks=pytest.mark.slow) for k in STEP])
def test_nan(kind, text, tmp_path, record_property):
    """The run ends with code 3; its last good checkpoint is whole, and continues, with the rate that it has."""
    step, folder = STEP[kind], tmp_path / "diverged"
    for name, value in {"step": step, "way": "continued", "seed": SEED}.items():
        record_property(name, value)
    options = (*RUN, f"data.train={text}", f"hydra.run.dir={folder}")
    done = run_faulty(*options, folder=tmp_path, fault=f"nan-{kind} step {step}")
    assert done.code == 3, done.errors
    assert f"at step {step}" in done.errors
    assert read_outcome(folder).status == "diverged"
    batch = torch.load(folder / "diverged.pt", weights_only=True)
    assert batch["step"] == step
    for name in ("best.ckpt", "last.ckpt"):
        good = read_checkpoint(folder / "checkpoints" / name)
        assert good["global_step"] == step // 3 * 3 if name == "last.ckpt" else good["global_step"] <= step
        assert all(tensor.isfinite().all() for tensor in good["state_dict"].values() if tensor.is_floating_point())
    refused = train_on(tmp_path / "lower", f"resume={folder}", "lr=1e-4", by=tmp_path)
    assert refused.code == 2
    assert "lr=0.0001 cannot change" in refused.errors
    done = train_on(tmp_path / "continued", f"resume={folder}", by=tmp_path)  # without the fault
    assert done.code == 0, done.errors
    assert load_run(tmp_path / "continued", which="last").step == 12
