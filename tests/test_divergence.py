"""A training that diverges: which layer it names, what it keeps, and that weights that are not finite are not saved."""

import json
import math

import pytest
import torch
from programs import WATCHED, start_train, train, weights_of, write_text

from lipformer.tasks import LANGUAGE
from lipformer.training.callbacks.divergence import DivergenceGuard
from lipformer.training.language import LanguageModule


@pytest.mark.parametrize(
    ("what", "layer"),
    [("output", "blocks.0.attention.branch"), ("gradient", "blocks.0.attention"), ("weight", "unembedding.bias")],
)
def test_divergence_names_the_layer_and_keeps_the_batch(what, layer, tmp_path, monkeypatch, capsys):
    original = LanguageModule.training_step

    def training_step(self, batch, batch_idx):
        if self.global_step < 4:
            return original(self, batch, batch_idx)
        branch = self.model.blocks[0].attention.branch
        weight = branch.query.weight
        with torch.no_grad():
            if what == "output":  # each map is finite, their products are not
                weight.fill_(1e30)
                branch.key.weight.fill_(1e30)
            if what == "weight":
                self.model.unembedding.bias[0] = math.nan
        loss = original(self, batch, batch_idx)
        return loss + (weight.sum() * 0).sqrt() if what == "gradient" else loss

    monkeypatch.setattr(LanguageModule, "training_step", training_step)
    folder = tmp_path / "run"
    text = write_text(tmp_path / "text.txt")
    assert train(monkeypatch, f"data.train={text}", "trainer.max_steps=9", f"hydra.run.dir={folder}") == 3
    kept = torch.load(folder / "diverged.pt", weights_only=True)
    assert kept["layer"] == layer
    assert kept["step"] == 4
    assert kept["inputs"].shape == kept["targets"].shape
    assert kept["lengths"].max() == kept["inputs"].shape[1]
    status = json.loads((folder / "status.json").read_text())
    assert status["status"] == "diverged"
    for words in ("at step 4", f"first not finite: {kept['layer']}", "its batch: diverged.pt"):
        assert words in status["reason"]
    assert status["reason"] in capsys.readouterr().err
    assert all(t.isfinite().all() for t in weights_of(folder, "best").values() if t.is_floating_point())


def test_a_loss_that_stays_too_high_ends_the_run(tmp_path, monkeypatch, capsys):
    text = write_text(tmp_path / "text.txt")
    guard = ("callbacks.divergence_guard.loss_above=0.01", "callbacks.divergence_guard.patience=3")
    folder = tmp_path / "run"
    assert train(monkeypatch, f"data.train={text}", "trainer.max_steps=9", *guard, f"hydra.run.dir={folder}") == 3
    error = capsys.readouterr().err
    assert "the loss has been above 0.01 nats per character since step 0" in error
    assert "every layer is finite" in error
    assert torch.load(folder / "diverged.pt", weights_only=True)["layer"] is None
    assert json.loads((folder / "metrics.json").read_text())["steps"] == 3


def test_only_steps_in_a_row_count():
    from types import SimpleNamespace

    guard = DivergenceGuard(5.0, 3)
    trainer, module = SimpleNamespace(global_step=9), SimpleNamespace(batch_score=6.0, lr=1.0, task=LANGUAGE)
    for nats in (6.0, 6.0, 4.0, 6.0, 6.0):
        module.batch_score = nats
        guard.on_train_batch_end(trainer, module)
    continued = DivergenceGuard(5.0, 3)
    continued.load_state_dict(guard.state_dict())
    with pytest.raises(Exception, match="since step 6"):
        continued.on_train_batch_end(trainer, module)
    quiet = DivergenceGuard(None, 1)
    module.batch_score = 1e9
    quiet.on_train_batch_end(trainer, module)


def spoil(module):
    """A row of the embedding that no batch reads shows in no loss."""
    with torch.no_grad():
        module.model.embedding.weight[0, 0] = math.nan


def test_weights_that_are_not_finite_are_never_saved(tmp_path, monkeypatch):
    def validated(module):
        spoil(module)
        module.log("val/nats_per_char", 1.0)

    monkeypatch.setattr(LanguageModule, "on_validation_epoch_end", validated)
    folder = tmp_path / "run"
    text = write_text(tmp_path / "text.txt")
    assert train(monkeypatch, f"data.train={text}", f"hydra.run.dir={folder}") == 3
    assert not (folder / "checkpoints" / "best.ckpt").exists()
    assert "embedding.weight" in json.loads((folder / "status.json").read_text())["reason"]


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt, 130), (MemoryError, 1)])
def test_nor_are_they_when_the_run_ends_otherwise(error, code, tmp_path, monkeypatch):
    original = LanguageModule.training_step

    def training_step(self, batch, batch_idx):
        if self.global_step == 4:
            spoil(self)
            raise error
        return original(self, batch, batch_idx)

    monkeypatch.setattr(LanguageModule, "training_step", training_step)
    folder, text = tmp_path / "run", write_text(tmp_path / "text.txt")
    options = (f"data.train={text}", "trainer.max_steps=9", f"hydra.run.dir={folder}")
    assert train(monkeypatch, *options) == code
    assert all(t.isfinite().all() for t in weights_of(folder).values() if t.is_floating_point())


def test_divergence_in_validation_keeps_its_batch(tmp_path, monkeypatch):
    folder, text = tmp_path / "run", write_text(tmp_path / "text.txt")
    valid = tmp_path / "valid.txt"
    valid.write_text("the cat sat\n")
    options = ("trainer.max_steps=1", "trainer.val_every_steps=1", "lr=1e30", "schedule.warmup_steps=0")
    data = (f"data.train={text}", f"data.valid={valid}", f"data.test={valid}")
    assert train(monkeypatch, *options, *data, f"hydra.run.dir={folder}") == 3
    assert torch.load(folder / "diverged.pt", weights_only=True)["lengths"].tolist() == [12]


def test_what_cannot_be_explained_still_ends_as_diverged(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch, "save", lambda *a, **k: (_ for _ in ()).throw(RuntimeError("no space left")))
    guard = ("callbacks.divergence_guard.loss_above=0.01", "callbacks.divergence_guard.patience=1")
    text = write_text(tmp_path / "text.txt")
    assert train(monkeypatch, f"data.train={text}", *guard, f"hydra.run.dir={tmp_path / 'run'}") == 3
    assert "every layer is finite" in capsys.readouterr().err


@pytest.mark.slow
def test_all_ranks_diverge_together(tmp_path):
    text = write_text(tmp_path / "text.txt")
    guard = ("callbacks.divergence_guard.loss_above=0.01", "callbacks.divergence_guard.patience=2")
    options = (*WATCHED, *guard, f"data.train={text}", "trainer.devices=2", "data.batch_tokens=400")
    process = start_train(*options, f"hydra.run.dir={tmp_path / 'run'}", folder=tmp_path)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 3, errors
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "diverged"
    assert (tmp_path / "run" / "diverged.pt").is_file()
