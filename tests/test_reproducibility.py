"""The same seed on the same machine gives the same numbers, whatever beside the model and its text is changed.

Weights and optimizer are compared bit for bit, and metrics.csv cell by cell: it holds no times.
"""

import csv
from pathlib import Path

import pytest
import torch
from programs import WATCHED, start_train, train, write_text

from lipformer.training.language import LanguageModule

RUN = (
    "attention=contractive_l2_decoupled",
    "dropout=0.2",
    "regularizer=jacobian",
    "trainer.max_steps=11",  # 7 batches an epoch: it ends in the middle of the second one
    "trainer.val_every_steps=3",
    "data.batch_tokens=512",
)
MEASURED = ("stability/", "certificate/", "sampled/")
"""First parts of the metrics that only telemetry adds."""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("reproducibility") / "text.txt")


@pytest.fixture(scope="module")
def reference(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference") / "run"
    with pytest.MonkeyPatch.context() as patch:
        assert train(patch, *RUN, f"data.train={text}", f"hydra.run.dir={folder}") == 0
    return folder


def rows_of(folder: Path, *, watched: bool = False) -> list[dict[str, str]]:
    """The rows of metrics.csv; those of telemetry are left out unless asked for."""
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    kept = [{k: v for k, v in row.items() if v and (watched or not k.startswith(MEASURED))} for row in rows]
    return [row for row in kept if row.keys() - {"epoch", "step", "train/tokens"}]


def state_of(folder: Path, which: str) -> dict[str, torch.Tensor]:
    """Weights and state of the optimizer in a checkpoint."""
    checkpoint = torch.load(folder / "checkpoints" / f"{which}.ckpt", weights_only=True)
    (optimizer,) = checkpoint["optimizer_states"]
    moments = {f"{i}/{name}": value for i, each in optimizer["state"].items() for name, value in each.items()}
    return {**checkpoint["state_dict"], **moments}


def assert_the_same(one: Path, other: Path, *, watched: bool = False) -> None:
    for which in ("last", "best"):
        first, second = state_of(one, which), state_of(other, which)
        assert first.keys() == second.keys()
        assert [name for name in first if not torch.equal(first[name], second[name])] == []
    assert rows_of(one, watched=watched) == rows_of(other, watched=watched) != []


def test_another_seed_gives_other_numbers(text, reference, tmp_path, monkeypatch):
    """What is compared does depend on the seed."""
    assert train(monkeypatch, *RUN, "seed=1", f"data.train={text}", f"hydra.run.dir={tmp_path / 'run'}") == 0
    assert rows_of(reference) != rows_of(tmp_path / "run")
    first, second = state_of(reference, "last"), state_of(tmp_path / "run", "last")
    assert any(not torch.equal(first[name], second[name]) for name in first)


def test_neither_workers_nor_telemetry_nor_a_logger_changes_a_number(text, reference, tmp_path, monkeypatch):
    options = (*WATCHED, "logger=tensorboard", "data.num_workers=2", f"data.train={text}")
    assert train(monkeypatch, *RUN, *options, f"hydra.run.dir={tmp_path / 'run'}") == 0
    assert_the_same(reference, tmp_path / "run")
    assert any(name.startswith("stability/") for row in rows_of(tmp_path / "run", watched=True) for name in row)


def test_a_job_of_a_sweep_is_as_the_run_alone(text, reference, tmp_path, monkeypatch):
    """The third, after jobs of another seed, and of other settings of what is kept for the whole process."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    sweep = ("-m", "seed=1,2,0", f"data.train={text}", f"hydra.sweep.dir={tmp_path / 'sweep'}")
    assert train(monkeypatch, *RUN, *sweep) == 0
    assert_the_same(reference, tmp_path / "sweep" / "2")


def stop_at(step, monkeypatch):
    """Let the training fail in the step that follows `step`."""
    original = LanguageModule.training_step

    def training_step(self, batch, batch_idx):
        if self.global_step == step:
            raise RuntimeError("stopped")
        return original(self, batch, batch_idx)

    monkeypatch.setattr(LanguageModule, "training_step", training_step)


@pytest.mark.parametrize(("before", "after", "step"), [(0, 2, 4), (2, 1, 7)])
def test_a_run_goes_on_with_another_number_of_workers(before, after, step, text, reference, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_at(step, patch)
        options = (f"data.num_workers={before}", f"data.train={text}", f"hydra.run.dir={tmp_path / 'first'}")
        assert train(patch, *RUN, *options) == 1
    assert torch.load(tmp_path / "first" / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == step
    more = (f"resume={tmp_path / 'first'}", f"data.num_workers={after}", f"hydra.run.dir={tmp_path / 'second'}")
    assert train(monkeypatch, *more) == 0
    assert_the_same(reference, tmp_path / "second")


@pytest.mark.slow  # quick: test_a_run_goes_on_with_another_number_of_workers
@pytest.mark.parametrize("step", [1, 3, 5, 6, 9])  # 3 follows a validation, 6 an epoch
def test_a_run_that_failed_in_a_step_goes_on_in_the_same_rows(step, text, reference, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_at(step, patch)
        assert train(patch, *RUN, f"data.train={text}", f"hydra.run.dir={tmp_path / 'first'}") == 1
    assert train(monkeypatch, f"resume={tmp_path / 'first'}", f"hydra.run.dir={tmp_path / 'second'}") == 0
    assert_the_same(reference, tmp_path / "second")


PROCESSES = {
    "workers": ("data.num_workers=1",),
    "more workers": ("data.num_workers=2",),
    "telemetry": WATCHED,
    "tensorboard": ("logger=tensorboard",),
    "wandb": ("logger=wandb", "logger.mode=offline"),
    "all at once": (*WATCHED, "logger=wandb", "logger.mode=offline", "data.num_workers=2", "trainer.report=true"),
}


@pytest.mark.slow  # quick: test_neither_workers_nor_telemetry_nor_a_logger_changes_a_number
@pytest.mark.parametrize("name", PROCESSES)
def test_a_fresh_process_gives_the_same_numbers(name, text, reference, tmp_path):
    folder = tmp_path / "run"
    process = start_train(
        *RUN, *PROCESSES[name], f"data.train={text}", f"hydra.run.dir={folder}", folder=tmp_path, PYTHONHASHSEED="7"
    )
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert_the_same(reference, folder)


@pytest.mark.slow  # quick: test_a_job_of_a_sweep_is_as_the_run_alone
def test_a_job_of_a_sweep_of_unlike_jobs_is_as_the_run_alone(text, tmp_path, monkeypatch):
    """Telemetry's numbers are the same too, after jobs that end badly."""
    jobs = (*RUN, *WATCHED, "regularizer=none", f"data.train={text}")
    assert train(monkeypatch, *jobs, "attention=tied_l2", f"hydra.run.dir={tmp_path / 'alone'}") == 0
    sweep = ("-m", "attention=dot_product,unfit,tied_l2", f"hydra.sweep.dir={tmp_path / 'sweep'}")
    (tmp_path / "own" / "attention").mkdir(parents=True)
    (tmp_path / "own" / "attention" / "unfit.yaml").write_text("_target_: torch.nn.LayerNorm\n")
    own = f"hydra.searchpath=[file://{tmp_path / 'own'}]"
    assert train(monkeypatch, *jobs, *sweep, own) == 1
    assert_the_same(tmp_path / "alone", tmp_path / "sweep" / "2", watched=True)
