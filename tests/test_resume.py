"""A continued run ends where an uninterrupted one does, to the last bit."""

import json
import signal
from pathlib import Path

import pytest
import torch
from programs import TINY, start_train, train, wait_for, write_text

from lipformer import load_run
from lipformer.assembly import checkpoint as checkpoint_module
from lipformer.data.fingerprint import fingerprint
from lipformer.data.text_files import TextFiles
from lipformer.models.transformer import CharTransformer
from lipformer.training.callbacks.stopping import InterruptedInStep
from lipformer.training.checkpoint_io import AtomicCheckpointIO
from lipformer.training.language import LanguageModule
from lipformer.training.resume import carry_metrics

STEPS = 11
# 100 lines in batches of 512 tokens are 7 batches an epoch: 11 steps end in the middle of the second one.
RUN = (
    "dropout=0.2",
    f"trainer.max_steps={STEPS}",
    "trainer.val_every_steps=3",
    "data.batch_tokens=512",
    "schedule.warmup_steps=4",
)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("resume") / "text.txt")


@pytest.fixture(scope="module")
def uninterrupted(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    with pytest.MonkeyPatch.context() as patch:
        assert train(patch, *RUN, f"data.train={text}", f"hydra.run.dir={folder}") == 0
    return folder


def interrupt_at(step, monkeypatch):
    """Send this process a Ctrl-C in the middle of the training step that follows `step`."""
    original = LanguageModule.training_step

    def training_step(self, batch, batch_idx):
        if self.global_step == step:
            signal.raise_signal(signal.SIGINT)
        return original(self, batch, batch_idx)

    monkeypatch.setattr(LanguageModule, "training_step", training_step)


def assert_equal_ends(one, two):
    first, second = (torch.load(f / "checkpoints" / "last.ckpt", weights_only=True) for f in (one, two))
    assert first["global_step"] == second["global_step"] == STEPS
    assert first["state_dict"].keys() == second["state_dict"].keys()
    for name, tensor in first["state_dict"].items():
        assert torch.equal(tensor, second["state_dict"][name]), name
    moments = [checkpoint["optimizer_states"][0]["state"] for checkpoint in (first, second)]
    for index, state in moments[0].items():
        assert all(torch.equal(value, moments[1][index][key]) for key, value in state.items())
    assert first["lr_schedulers"] == second["lr_schedulers"]
    assert first["lipformer"]["tokens_seen"] == second["lipformer"]["tokens_seen"]
    figures = [json.loads((folder / "metrics.json").read_text()) for folder in (one, two)]
    for name in ("best/val/nats_per_char", "val/nats_per_char", "tokens", "steps"):
        assert figures[0][name] == figures[1][name], name


def assert_equal_rows(one, two):
    assert (one / "metrics.csv").read_text().splitlines() == (two / "metrics.csv").read_text().splitlines()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("step", [0, 4, 5, 6, 8])  # 5 ends at a validation, 6 at the end of the epoch
def test_interrupted_and_continued_equals_uninterrupted(
    step, workers, text, uninterrupted, tmp_path, monkeypatch, capsys
):
    with monkeypatch.context() as patch:
        interrupt_at(step, patch)
        options = (f"data.train={text}", f"data.num_workers={workers}", f"hydra.run.dir={tmp_path / 'first'}")
        assert train(patch, *RUN, *options) == 130
    assert json.loads((tmp_path / "first" / "status.json").read_text())["status"] == "interrupted"
    before = {f: f.read_bytes() for f in (tmp_path / "first").rglob("*") if f.is_file()}
    second = tmp_path / "second"
    assert train(monkeypatch, f"resume={tmp_path / 'first'}", f"hydra.run.dir={second}") == 0
    assert_equal_ends(uninterrupted, second)
    after = {f: f.read_bytes() for f in (tmp_path / "first").rglob("*") if f.is_file()}
    assert before == after, "the continued run's own folder is left alone"


def test_what_is_no_weight_is_continued_too(text, tmp_path, monkeypatch):
    """Singular vectors, bases of orthogonal heads, that norms have been set, the noise of a regularizer."""
    parts = (
        "attention=contractive_l2_blocks",
        "feedforward=contractive",
        "norm=act_norm",
        "residual=invertible",
        "linear=sigma_reparam",
        "regularizer=jacobian",
        f"data.train={text}",
    )
    assert train(monkeypatch, *RUN, *parts, f"hydra.run.dir={tmp_path / 'whole'}") == 0
    with monkeypatch.context() as patch:
        interrupt_at(4, patch)
        assert train(patch, *RUN, *parts, f"hydra.run.dir={tmp_path / 'first'}") == 130
    assert train(monkeypatch, f"resume={tmp_path / 'first'}", f"hydra.run.dir={tmp_path / 'second'}") == 0
    assert_equal_ends(tmp_path / "whole", tmp_path / "second")


def test_a_run_in_float64_is_continued_in_float64(text, tmp_path, monkeypatch):
    options = (*RUN, f"data.train={text}", "trainer.precision=64-true")
    assert train(monkeypatch, *options, f"hydra.run.dir={tmp_path / 'whole'}") == 0
    with monkeypatch.context() as patch:
        interrupt_at(4, patch)
        assert train(patch, *options, f"hydra.run.dir={tmp_path / 'first'}") == 130
    assert train(monkeypatch, f"resume={tmp_path / 'first'}", f"hydra.run.dir={tmp_path / 'second'}") == 0
    assert_equal_ends(tmp_path / "whole", tmp_path / "second")


def test_an_error_in_a_validation_does_not_spoil_the_figures(text, uninterrupted, tmp_path, monkeypatch):
    original = LanguageModule.validation_step

    def validation_step(self, batch, batch_idx):
        original(self, batch, batch_idx)
        if self.global_step == 6:
            raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(LanguageModule, "validation_step", validation_step)
        assert train(patch, *RUN, f"data.train={text}", f"hydra.run.dir={tmp_path / 'first'}") == 1
    assert json.loads((tmp_path / "first" / "status.json").read_text())["reason"] == "RuntimeError: out of memory"
    assert train(monkeypatch, f"resume={tmp_path / 'first'}", f"hydra.run.dir={tmp_path / 'second'}") == 0
    assert_equal_ends(uninterrupted, tmp_path / "second")
    assert_equal_rows(uninterrupted, tmp_path / "second")


def test_best_of_before_the_interruption_is_kept(text, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_at(4, patch)
        assert train(patch, *RUN, f"data.train={text}", f"hydra.run.dir={tmp_path / 'first'}") == 130
    best = json.loads((tmp_path / "first" / "metrics.json").read_text())["best/val/nats_per_char"]

    def validation_step(self, batch, batch_idx):  # all that follows is worse
        self.val_average.update(torch.tensor(9.0 * batch.lengths.sum()), batch.lengths.sum())

    monkeypatch.setattr(LanguageModule, "validation_step", validation_step)
    assert train(monkeypatch, f"resume={tmp_path / 'first'}", f"hydra.run.dir={tmp_path / 'second'}") == 0
    figures = json.loads((tmp_path / "second" / "metrics.json").read_text())
    assert figures["val/nats_per_char"] == 9.0
    assert figures["best/val/nats_per_char"] == best
    kept, old = (torch.load(tmp_path / f / "checkpoints" / "best.ckpt", weights_only=True) for f in ("second", "first"))
    assert kept["global_step"] == old["global_step"] == 3


def test_a_best_checkpoint_that_is_newer_than_the_last_one(text, uninterrupted, tmp_path, monkeypatch):
    """As a kill between the two leaves them: the best score is that of the file, not the one before."""
    original = AtomicCheckpointIO.save_checkpoint

    def save(self, checkpoint, path, storage_options=None):
        if Path(path).name == "last.ckpt" and checkpoint["global_step"] == STEPS:
            raise InterruptedInStep
        original(self, checkpoint, path)

    with monkeypatch.context() as patch:
        patch.setattr(AtomicCheckpointIO, "save_checkpoint", save)
        assert train(patch, *RUN, f"data.train={text}", f"hydra.run.dir={tmp_path / 'first'}") == 130
    assert train(monkeypatch, f"resume={tmp_path / 'first'}", f"hydra.run.dir={tmp_path / 'second'}") == 0
    assert_equal_ends(uninterrupted, tmp_path / "second")


@pytest.mark.parametrize("step", [4, 5, 8])  # 5 ends at the end of an epoch, and before a validation as 8 does
def test_no_row_of_metrics_csv_is_lost_by_an_interruption(step, text, uninterrupted, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_at(step, patch)
        assert train(patch, *RUN, f"data.train={text}", f"hydra.run.dir={tmp_path / 'first'}") == 130
    assert train(monkeypatch, f"resume={tmp_path / 'first'}", f"hydra.run.dir={tmp_path / 'second'}") == 0
    assert_equal_rows(uninterrupted, tmp_path / "second")


def test_the_row_in_whose_middle_a_process_was_killed_is_left_out(tmp_path):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    (tmp_path / "old" / "metrics.csv").write_text("epoch,step,x\n0,0,1.5\n0,,2.5\n0,2,0.5\n0,1")
    for name in ("new", "old"):  # a job of a sweep goes on in its own folder
        carry_metrics(tmp_path / name, tmp_path / "old" / "checkpoints" / "last.ckpt", step=2, validated=True)
        assert (tmp_path / name / "metrics.csv").read_text().splitlines() == ["epoch,step,x", "0,0,1.5"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), [f"it stands at step {STEPS} and trainer.max_steps={STEPS}"]),
        (("trainer.max_steps=99", "trainer.val_every_steps=0"), ["trainer.val_every_steps=0: it must be at least 1"]),
        (("trainer.max_steps=99", "trainer.progress=loud"), ["trainer.progress=loud: it must be one of auto, rich"]),
        (("trainer.max_steps=-1",), ["trainer.max_steps=-1: it must be at least 1 where trainer.max_epochs=-1"]),
        (("lr=0.1", "trainer.max_steps=99"), ["lr=0.1 cannot change: ", "a run with lr=0.003,"]),
        (("attention=l2",), ["attention=L2Attention cannot change: ", "a run with attention=DotProductAttention,"]),
        (("attention.fused=false",), ["attention.fused=false cannot change", "a run with attention.fused=true,"]),
        (("feedforward=relu",), ["feedforward.activation=relu cannot", "a run with feedforward.activation=gelu,"]),
        (("data.batch_tokens=99",), ["data.batch_tokens=99 cannot change", "a run with data.batch_tokens=512,"]),
        (("data=text_files", "data.unknown=replace"), ["data.unknown=replace", "a run with data.unknown=error,"]),
        (("data=ptb",), ["data=PennTreebank cannot change", "a run with data=TextFiles,"]),
        (("~attention",), ["attention=null cannot change", "a run with attention=DotProductAttention,"]),
        (("+attention.colour=red",), ["attention.colour=red cannot change", "a run with attention.colour=null,"]),
        (("experiment=ptb_small", "trainer.max_steps=99"), ["depth=4 cannot change", "a run with depth=1,"]),
        (("trainer.max_steps=99", "trainer.max_epochs=1"), ["it stands at epoch 1 and trainer.max_epochs=1; raise"]),
    ],
)
def test_what_a_continued_run_refuses(arguments, expected, uninterrupted, tmp_path, monkeypatch, capsys):
    code = train(monkeypatch, f"resume={uninterrupted}", *arguments, f"hydra.run.dir={tmp_path / 'run'}")
    assert code == 2
    errors = capsys.readouterr().err.splitlines()
    assert len([line for line in errors if line.startswith("error: ")]) == 1
    assert all(part in errors[-1] for part in expected), errors[-1]


def test_the_same_command_line_continues_a_run(text, uninterrupted, tmp_path, monkeypatch):
    """Values are compared, not what was typed: `TINY` names an attention, sizes and where it trains."""
    with monkeypatch.context() as patch:
        interrupt_at(4, patch)
        assert train(patch, *RUN, f"data.train={text}", f"hydra.run.dir={tmp_path / 'first'}") == 130
    command = (*TINY, *RUN, f"data.train={text}", f"hydra.run.dir={tmp_path / 'second'}")
    assert train(monkeypatch, *command, f"resume={tmp_path / 'first'}") == 0
    assert_equal_ends(uninterrupted, tmp_path / "second")


def test_the_same_experiment_continues_a_run(text, tmp_path, monkeypatch):
    experiment = ("experiment=ptb_small", "lr=1e-4", f"data.train={text}")
    assert train(monkeypatch, *experiment, f"hydra.run.dir={tmp_path / 'first'}") == 0
    second = (*TINY, *experiment, "trainer.max_steps=4", f"hydra.run.dir={tmp_path / 'second'}")
    assert train(monkeypatch, *second, f"resume={tmp_path / 'first'}") == 0
    assert load_run(tmp_path / "second", which="last").step == 4


def test_a_checkpoint_is_read_once_and_its_model_built_once(uninterrupted, tmp_path, monkeypatch):
    read, built = [], []
    original, init = checkpoint_module.read_archive, CharTransformer.__init__

    def load(path):
        read.append(path)
        return original(path)

    def build(self, *args, **options):
        built.append(self)
        init(self, *args, **options)

    monkeypatch.setattr(checkpoint_module, "read_archive", load)
    monkeypatch.setattr(CharTransformer, "__init__", build)
    more = (f"resume={uninterrupted}", f"trainer.max_steps={STEPS + 1}", f"hydra.run.dir={tmp_path / 'run'}")
    assert train(monkeypatch, *more) == 0
    names = [path.name for path in read]
    assert names.count("last.ckpt") == 2, "once by us, and once by Lightning"
    assert names.count("best.ckpt") == len(names) - 2 == 1, "for its score"
    assert len(built) == 1


def test_a_text_that_was_moved_and_one_that_was_changed(text, uninterrupted, tmp_path, monkeypatch, capsys):
    moved, other = tmp_path / "moved.txt", tmp_path / "other.txt"
    moved.write_text(text.read_text())
    other.write_text(text.read_text().replace("h", "z"))
    more = (f"resume={uninterrupted}", f"trainer.max_steps={STEPS + 1}", "data=text_files")
    assert train(monkeypatch, *more, f"data.train={moved}", f"hydra.run.dir={tmp_path / 'run'}") == 0
    assert f"train: {moved}" in (tmp_path / "run" / "config.yaml").read_text()
    capsys.readouterr()
    assert train(monkeypatch, *more, f"data.train={other}", f"hydra.run.dir={tmp_path / 'refused'}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    then, now = (fingerprint(TextFiles(str(file)).lines("train")) for file in (text, other))
    assert f"its text has changed: train was {then}, and is {now}; valid was " in line
    assert f"({other}); continue it with the text that it began with, or start a new run" in line
    assert not (tmp_path / "refused" / "checkpoints").exists()


def test_a_text_with_the_same_characters_that_was_changed_is_refused(
    text, uninterrupted, tmp_path, monkeypatch, capsys
):
    """In one split alone, and where the checkpoint is of a version that stored no fingerprints it is not noticed."""
    lines = text.read_text().splitlines()
    other = tmp_path / "other.txt"
    other.write_text("\n".join([*lines[:-6], " ".join(reversed(lines[-6].split())), *lines[-5:]]))  # one of valid
    more = (f"trainer.max_steps={STEPS + 1}", "data=text_files", f"data.train={other}")
    assert train(monkeypatch, f"resume={uninterrupted}", *more, f"hydra.run.dir={tmp_path / 'refused'}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "its text has changed: valid was 5 lines" in line
    checkpoint = torch.load(uninterrupted / "checkpoints" / "last.ckpt", weights_only=True)
    del checkpoint["lipformer"]["corpus"]
    old = tmp_path / "old.ckpt"
    torch.save(checkpoint, old)
    assert train(monkeypatch, f"resume={old}", *more, f"hydra.run.dir={tmp_path / 'run'}") == 0
    other.write_text(text.read_text().replace("h", "z"))
    assert train(monkeypatch, f"resume={old}", *more, f"hydra.run.dir={tmp_path / 'again'}") == 2
    assert f"{other} has other characters than the text that run was trained on" in capsys.readouterr().err


def test_a_checkpoint_named_from_within_its_folder(text, uninterrupted, tmp_path, monkeypatch):
    monkeypatch.chdir(uninterrupted / "checkpoints")
    more = ("resume=last.ckpt", f"trainer.max_steps={STEPS + 1}", "name=more")
    assert train(monkeypatch, *more, f"hydra.run.dir={tmp_path / 'run'}") == 0
    whole, continued = (
        (folder / "metrics.csv").read_text().splitlines() for folder in (uninterrupted, tmp_path / "run")
    )
    assert continued[: len(whole)] == whole
    assert "name: more" in (tmp_path / "run" / "config.yaml").read_text()


def test_an_altered_checkpoint_is_one_line(uninterrupted, tmp_path, monkeypatch, capsys):
    checkpoint = torch.load(uninterrupted / "checkpoints" / "last.ckpt", weights_only=True)
    del checkpoint["lipformer"]["config"]["optimizer"]
    torch.save(checkpoint, tmp_path / "altered.ckpt")
    assert train(monkeypatch, f"resume={tmp_path / 'altered.ckpt'}", f"hydra.run.dir={tmp_path / 'run'}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "altered.ckpt: its configuration lacks 'optimizer'; the file was altered" in line


def test_ctrl_c_in_the_last_validation_is_not_swallowed(text, tmp_path, monkeypatch):
    original = LanguageModule.validation_step

    def validation_step(self, batch, batch_idx):
        if self.global_step == STEPS:
            signal.raise_signal(signal.SIGINT)
        original(self, batch, batch_idx)

    monkeypatch.setattr(LanguageModule, "validation_step", validation_step)
    assert train(monkeypatch, *RUN, f"data.train={text}", f"hydra.run.dir={tmp_path / 'run'}") == 130
    assert torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == STEPS


def test_a_run_bounded_by_steps_continues_bounded_by_epochs(uninterrupted, tmp_path, monkeypatch):
    limits = ("trainer.max_steps=-1", "trainer.max_epochs=3")
    assert train(monkeypatch, f"resume={uninterrupted}", *limits, f"hydra.run.dir={tmp_path / 'run'}") == 0
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["steps"] == 3 * 6


def test_a_killed_process_continues_in_another(text, uninterrupted, tmp_path):
    slow = (*RUN, f"data.train={text}", f"hydra.run.dir={tmp_path / 'first'}", "trainer.max_steps=100000")
    process = start_train(*slow, f"schedule.total_steps={STEPS}", folder=tmp_path)
    wait_for(tmp_path / "first" / "checkpoints" / "last.ckpt", process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    step = torch.load(tmp_path / "first" / "checkpoints" / "last.ckpt", weights_only=True)["global_step"]
    more = (f"resume={tmp_path / 'first'}", f"trainer.max_steps={step + 2}", f"hydra.run.dir={tmp_path / 'second'}")
    process = start_train(*more, folder=tmp_path)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert json.loads((tmp_path / "second" / "metrics.json").read_text())["steps"] == step + 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("optimizer_states", None),
        ("optimizer_states", []),
        ("loops", None),
        ("CharDataModule", 7),
        ("epoch", "one"),
        ("pytorch-lightning_version", 5),
    ],
)
def test_a_checkpoint_without_the_state_of_a_training_is_refused(tiny_run, tmp_path, monkeypatch, capsys, key, value):
    """Weights alone, as Lightning's save_weights_only leaves them, and altered files."""
    checkpoint = torch.load(tiny_run / "checkpoints" / "last.ckpt", weights_only=True)
    checkpoint[key] = value
    torch.save(checkpoint, tmp_path / "bad.ckpt")
    resume = f"resume={tmp_path / 'bad.ckpt'}"
    assert train(monkeypatch, resume, "trainer.max_steps=4", f"hydra.run.dir={tmp_path / 'run'}") == 2
    assert f"it lacks the {key} of a training" in capsys.readouterr().err


def test_a_checkpoint_whose_parts_do_not_fit_is_not_continued(tiny_run, tmp_path, monkeypatch, capsys):
    checkpoint = torch.load(tiny_run / "checkpoints" / "last.ckpt", weights_only=True)
    for i, (place, value) in enumerate([("depth", 10**9), ("seed", "no"), ("model", 5), ("model", {})]):
        (tmp_path / str(i)).mkdir()
        bad = tmp_path / str(i) / "bad.ckpt"
        config = {**checkpoint["lipformer"]["config"], place: value}
        torch.save({**checkpoint, "lipformer": {**checkpoint["lipformer"], "config": config}}, bad)
        assert train(monkeypatch, f"resume={bad}", f"hydra.run.dir={tmp_path / str(i) / 'run'}") == 2
        assert str(bad) in capsys.readouterr().err
