"""A resumed run trains on exactly the rows of an uninterrupted one, wherever the checkpoint was written."""

import itertools
from pathlib import Path

import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from lipformer.data.datamodule import CharDataModule
from lipformer.errors import DataError
from lipformer.training.loop_progress import align_loop_progress

EPOCHS = 3


class ShortLines:
    """Fifty lines, each another text, in nine lengths."""

    name = "short"

    def lines(self, split):
        first = {"train": 0, "valid": 40, "test": 45}[split]
        texts = itertools.islice(itertools.product("abc", repeat=4), first, first + {"train": 40}.get(split, 5))
        return ["".join(text) + "d" * (i % 9) for i, text in enumerate(texts)]

    def source(self, split, index=None):
        return f"{split}, line {index}"


class Recorder(LightningModule):
    """Trains one number on nothing and writes down the rows it is given, in the order it is given them."""

    def __init__(self, fail_at=None, ask_steps=False):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.rows, self.validated = [], []
        self.fail_at, self.ask_steps = fail_at, ask_steps

    def training_step(self, batch, batch_idx):
        if self.global_step == self.fail_at:
            raise RuntimeError("stopped")
        self.rows.append((batch_idx, batch.inputs.tolist()))
        return self.weight * batch.targets.float().mean()

    def validation_step(self, batch, batch_idx):
        pass

    def on_validation_end(self):
        self.validated.append(self.global_step)

    def on_load_checkpoint(self, checkpoint):
        align_loop_progress(checkpoint, validate_every=10**9)  # at the ends of epochs only

    def configure_optimizers(self):
        if self.ask_steps:
            assert self.trainer.estimated_stepping_batches > 0
        return torch.optim.SGD(self.parameters(), lr=0.1)


def datamodule(**changes):
    options = {
        "context": 16,
        "max_length": None,
        "unknown": "error",
        "batch_tokens": 64,
        "num_workers": 0,
        "seed": 7,
    }
    return CharDataModule(ShortLines(), **(options | changes))


def fit(folder, *callbacks, resume=None, workers=0, module=None, data=None, **options):
    torch.set_num_threads(1)
    module = module or Recorder()
    trainer = Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=bool(callbacks),
        callbacks=list(callbacks),
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        **({"max_epochs": EPOCHS} | options),
    )
    trainer.fit(module, datamodule=data or datamodule(num_workers=workers), ckpt_path=resume, weights_only=True)
    return module.rows, trainer


class SaveAlways(Callback):
    """Saves at each hook at which a checkpoint may be written: file names <rows trained>-<hook>."""

    def __init__(self, folder: Path):
        self.folder = folder

    def save(self, trainer, module, hook):
        trainer.save_checkpoint(self.folder / f"{len(module.rows):03d}-{hook}.ckpt")

    def on_train_batch_end(self, trainer, module, *_):
        self.save(trainer, module, "batch_end")

    def on_validation_end(self, trainer, module):
        self.save(trainer, module, "validation_end")

    def on_train_epoch_end(self, trainer, module):
        self.save(trainer, module, "epoch_end")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    rows, trainer = fit(folder, SaveAlways(folder))
    return rows, sorted(folder.glob("*.ckpt")), trainer.num_training_batches


def test_the_recorder_sees_every_sentence_once_an_epoch_in_changing_order(uninterrupted):
    rows, _, per_epoch = uninterrupted
    assert per_epoch >= 5
    assert len(rows) == EPOCHS * per_epoch
    epochs = [[row for _, batch in rows[e * per_epoch : (e + 1) * per_epoch] for row in batch] for e in range(EPOCHS)]
    assert [len(epoch) for epoch in epochs] == [40] * EPOCHS
    assert epochs[0] != epochs[1] != epochs[2]


def test_resume_from_every_step_and_hook(uninterrupted, tmp_path):
    rows, checkpoints, per_epoch = uninterrupted
    assert len(checkpoints) == EPOCHS * (per_epoch + 2)
    wrong = []
    for checkpoint in checkpoints:
        done = int(checkpoint.name[:3])
        module = Recorder()
        resumed, _ = fit(tmp_path, resume=checkpoint, module=module)
        ends = [step for step in range(per_epoch, EPOCHS * per_epoch + 1, per_epoch) if step > done]
        if resumed != rows[done:] or module.validated != ends:
            wrong.append(checkpoint.name)
    assert not wrong


@pytest.mark.parametrize("extra", [-1, 0, 2])  # batches past the end of the first epoch
def test_resume_with_workers(uninterrupted, tmp_path, extra):
    rows, checkpoints, per_epoch = uninterrupted
    done = per_epoch + extra
    checkpoint = next(c for c in checkpoints if c.name == f"{done:03d}-batch_end.ckpt")
    resumed, _ = fit(tmp_path, resume=checkpoint, workers=2)
    assert resumed == rows[done:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["last.ckpt", "after.ckpt"])
def test_max_steps_within_an_epoch_then_further_epochs(uninterrupted, tmp_path, workers, name):
    rows, _, per_epoch = uninterrupted
    done = per_epoch + 2
    first, trainer = fit(tmp_path, ModelCheckpoint(tmp_path, save_last=True), workers=workers, max_steps=done)
    trainer.save_checkpoint(tmp_path / "after.ckpt")
    assert first == rows[:done]
    module = Recorder()
    resumed, _ = fit(tmp_path, resume=tmp_path / name, workers=workers, module=module)
    assert resumed == rows[done:]
    assert module.validated == [2 * per_epoch, 3 * per_epoch]


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_after_an_exception_repeats_the_batch_that_failed(uninterrupted, tmp_path, workers):
    rows, _, per_epoch = uninterrupted
    done = per_epoch + 3
    saves = ModelCheckpoint(tmp_path, save_last=True, save_on_exception=True)
    with pytest.raises(RuntimeError, match="stopped"):
        fit(tmp_path, saves, workers=workers, module=Recorder(fail_at=done))
    resumed, _ = fit(tmp_path, resume=tmp_path / "last.ckpt", workers=workers)
    assert resumed == rows[done:]


@pytest.mark.parametrize("hook", ["batch_end", "validation_end", "epoch_end"])
def test_a_resumed_run_can_be_resumed(uninterrupted, tmp_path, hook):
    rows, checkpoints, per_epoch = uninterrupted
    last_of_epoch = next(c for c in checkpoints if c.name == f"{per_epoch:03d}-{hook}.ckpt")
    fit(tmp_path, SaveAlways(tmp_path), resume=last_of_epoch, max_epochs=2)
    wrong = []
    for checkpoint in tmp_path.glob("*-batch_end.ckpt"):
        resumed, _ = fit(tmp_path, resume=checkpoint)
        if resumed != rows[per_epoch + int(checkpoint.name[:3]) :]:
            wrong.append(checkpoint.name)
    assert not wrong


def test_a_datamodule_begins_anew_with_a_new_trainer(uninterrupted, tmp_path):
    rows, checkpoints, per_epoch = uninterrupted
    data = datamodule()
    middle = next(c for c in checkpoints if c.name == f"{per_epoch + 2:03d}-batch_end.ckpt")
    assert fit(tmp_path, resume=middle, data=data)[0] == rows[per_epoch + 2 :]
    assert fit(tmp_path, data=data)[0] == rows


def test_a_schedule_that_asks_for_the_number_of_steps(uninterrupted, tmp_path):
    rows, checkpoints, per_epoch = uninterrupted
    for done in (per_epoch, per_epoch + 2):
        checkpoint = next(c for c in checkpoints if c.name == f"{done:03d}-batch_end.ckpt")
        resumed, _ = fit(tmp_path, resume=checkpoint, module=Recorder(ask_steps=True))
        assert resumed == rows[done:]


def test_limited_epochs_each_begin_a_new_order(tmp_path):
    rows, _ = fit(tmp_path, SaveAlways(tmp_path), limit_train_batches=3)
    assert len(rows) == 3 * EPOCHS
    assert rows[0] != rows[3] != rows[6]
    for checkpoint in sorted(tmp_path.glob("*-batch_end.ckpt")):
        resumed, _ = fit(tmp_path, resume=checkpoint, limit_train_batches=3)
        assert resumed == rows[int(checkpoint.name[:3]) :], checkpoint.name


def test_changed_batches_are_refused_in_the_middle_of_an_epoch(uninterrupted, tmp_path):
    _, checkpoints, per_epoch = uninterrupted
    middle = next(c for c in checkpoints if c.name == f"{per_epoch + 2:03d}-batch_end.ckpt")
    with pytest.raises(DataError, match=f"stands at batch 2 of an epoch of {per_epoch}, but .* 10 batches now"):
        fit(tmp_path, resume=middle, data=datamodule(batch_tokens=40))


def test_the_global_generator_is_not_touched(tmp_path):
    class AsksGlobal(Recorder):
        def on_train_batch_end(self, *_):
            draws.append(torch.rand(()).item())

    seen = []
    for workers in (0, 2):
        draws = []
        torch.manual_seed(0)
        fit(tmp_path, workers=workers, module=AsksGlobal())
        seen.append(draws)
    torch.manual_seed(0)
    assert seen == [[torch.rand(()).item() for _ in seen[0]]] * 2
