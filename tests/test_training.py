"""The training loop: what a step does, what a run folder holds, how a run ends."""

import json
import math
import signal
from types import SimpleNamespace

import pytest
import torch
from hydra import compose, initialize_config_dir
from programs import train, write_text

from lipformer.assembly.build import build_model
from lipformer.assembly.checkpoint import load_run
from lipformer.config import MODEL_GROUPS, conf_dir, register, to_plain, validate
from lipformer.config.targets import factory
from lipformer.errors import DivergedError, UsageError
from lipformer.models.lstm import CharLSTM
from lipformer.modules.orthogonal import orthogonal
from lipformer.training import schedules
from lipformer.training.language import LanguageModule
from lipformer.training.parameter_groups import parameter_groups
from lipformer.training.trainer import build_trainer


def test_run_folder_holds_what_the_contract_says(tiny_run):
    names = {str(f.relative_to(tiny_run)) for f in tiny_run.rglob("*") if f.is_file()}
    assert names == {
        "config.yaml",
        "metrics.csv",
        "metrics.json",
        "status.json",
        "environment.json",
        "train.log",
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
    }
    status = json.loads((tiny_run / "status.json").read_text())
    figures = json.loads((tiny_run / "metrics.json").read_text())
    assert status == {"status": "finished", "exit_code": 0, "reason": "", "best": figures["best/val/nats_per_char"]}
    assert figures["steps"] == 3
    assert figures["val/bits_per_char"] == pytest.approx(figures["val/nats_per_char"] / math.log(2), rel=1e-6)
    header = (tiny_run / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"train/nats_per_char", "val/nats_per_char", "val/bits_per_char", "train/gradient_norm"} <= set(header)


def test_checkpoint_holds_plain_containers_only(tiny_run):
    checkpoint = torch.load(tiny_run / "checkpoints" / "last.ckpt", weights_only=True)
    extras = checkpoint["lipformer"]
    assert extras["config"]["width"] == 16
    assert extras["vocabulary"] == sorted(extras["vocabulary"])
    assert {"lipformer", "torch", "python", "pytorch_lightning"} == set(extras["versions"])

    def plain(value):
        if isinstance(value, dict):
            return all(type(k) is str and plain(v) for k, v in value.items())
        if isinstance(value, list):
            return all(map(plain, value))
        return value is None or type(value) in (str, int, float, bool)

    assert plain(extras["config"])


@pytest.mark.parametrize("when", ["loss", "gradient"])
def test_divergence_ends_the_run_with_3_and_keeps_a_finite_checkpoint(when, tmp_path, monkeypatch, capsys):
    original = LanguageModule.training_step

    def training_step(self, batch, batch_idx):
        if self.global_step == 4:
            if when == "loss":
                with torch.no_grad():
                    self.model.unembedding.bias[0] = math.nan
            else:
                loss = original(self, batch, batch_idx)
                return loss + (self.model.unembedding.bias.sum() * 0).sqrt()  # 0, with an infinite slope
        return original(self, batch, batch_idx)

    monkeypatch.setattr(LanguageModule, "training_step", training_step)
    text = write_text(tmp_path / "text.txt")
    folder = tmp_path / "run"
    code = train(monkeypatch, f"data.train={text}", "trainer.max_steps=9", f"hydra.run.dir={folder}")
    assert code == 3
    status = json.loads((folder / "status.json").read_text())
    assert status["status"] == "diverged"
    assert f"the {when} became" in status["reason"]
    assert "step 4" in status["reason"]
    assert status["best"] is not None, "the validation at step 3 counts"
    assert "error: the " in capsys.readouterr().err
    best = torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True)
    assert best["global_step"] == 3
    last = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    for checkpoint in (best, last):
        assert all(torch.isfinite(t).all() for t in checkpoint["state_dict"].values() if t.is_floating_point())


@pytest.mark.parametrize("scale", [None, 1.0, 65536.0])
def test_float16_gradients_beyond_the_loss_scale_are_the_scalers_business(scale):
    module = LanguageModule(
        torch.nn.Linear(1, 1), optimizer=None, schedule=None, checkpoint_extras={}, seed=0, log_every_steps=99
    )
    scaler = None if scale is None else SimpleNamespace(get_scale=lambda: scale)
    module.trainer = SimpleNamespace(
        precision_plugin=SimpleNamespace(scaler=scaler),
        global_step=7,
        optimizers=[SimpleNamespace(param_groups=[{"lr": 1}])],
    )
    module.model.weight.grad = torch.full((1, 1), math.inf)
    if scale == 65536:  # it skips the step and halves the scale
        module.on_before_optimizer_step(None)
    else:
        with pytest.raises(DivergedError, match="the gradient became inf at step 7"):
            module.on_before_optimizer_step(None)


def test_auto_is_never_a_device_without_float64(tmp_path, monkeypatch):
    monkeypatch.setattr("pytorch_lightning.accelerators.mps.MPSAccelerator.is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    options = {
        "accelerator": "auto",
        "devices": 1,
        "precision": "32-true",
        "max_steps": 1,
        "max_epochs": -1,
        "gradient_clip": None,
        "val_every_steps": 1,
        "log_every_steps": 1,
        "deterministic": False,
        "num_nodes": 1,
        "strategy": "auto",
    }
    assert type(build_trainer(options, tmp_path, [], []).accelerator).__name__ == "CPUAccelerator"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_one_line(tmp_path, monkeypatch, capsys):
    text = write_text(tmp_path / "text.txt")
    assert train(monkeypatch, "trainer.accelerator=gpu", f"data.train={text}", f"hydra.run.dir={tmp_path / 'run'}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: trainer: ")


def test_sigterm_before_the_first_step_closes_the_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("lipformer.training.parts.build_corpus", lambda data: signal.raise_signal(signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    text = write_text(tmp_path / "text.txt")
    assert train(monkeypatch, f"data.train={text}", f"hydra.run.dir={tmp_path / 'run'}") == 143
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["status"], status["exit_code"]) == ("terminated", 143)
    assert capsys.readouterr().err == "error: terminated by the system (SIGTERM)\n"
    assert signal.getsignal(signal.SIGTERM) == before


def test_float16_on_the_cpu_is_refused(tmp_path, monkeypatch, capsys):
    text = write_text(tmp_path / "text.txt")
    folder = tmp_path / "run"
    assert train(monkeypatch, "trainer.precision=16-mixed", f"data.train={text}", f"hydra.run.dir={folder}") == 2
    assert "take bf16-mixed" in capsys.readouterr().err


def test_a_run_is_a_function_of_its_seed(tmp_path, monkeypatch):
    text = write_text(tmp_path / "text.txt")
    ends = {}
    for name, seed in {"a": 0, "b": 0, "c": 1}.items():
        folder = tmp_path / name
        options = (f"data.train={text}", "dropout=0.3", "attention=contractive_l2", f"seed={seed}")
        assert train(monkeypatch, *options, f"hydra.run.dir={folder}") == 0
        ends[name] = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(ends["a"][key], ends["b"][key]) for key in ends["a"])
    assert any(not torch.equal(ends["a"][key], ends["c"][key]) for key in ends["a"])


def test_the_last_step_is_validated_and_saved(tmp_path, monkeypatch):
    text = write_text(tmp_path / "text.txt")
    options = (f"data.train={text}", "trainer.max_steps=5", "trainer.val_every_steps=100")
    assert train(monkeypatch, *options, f"hydra.run.dir={tmp_path / 'run'}") == 0
    assert torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == 5
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["best/val/nats_per_char"] > 0


@pytest.mark.parametrize("epochs", [1, 2])
def test_training_by_epochs_sees_each_sentence_so_often(epochs, tmp_path, monkeypatch):
    text = write_text(tmp_path / "text.txt")
    tokens = sum(len(line) + 1 for line in text.read_text().splitlines()[:90])  # the training share
    limits = ("trainer.max_steps=-1", f"trainer.max_epochs={epochs}", "schedule=constant", "data.batch_tokens=512")
    assert train(monkeypatch, *limits, f"data.train={text}", f"hydra.run.dir={tmp_path / 'run'}") == 0
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["tokens"] == epochs * tokens


NEEDS = {"invertible": ("attention=contractive_l2", "norm=act_norm", "feedforward=contractive")}


@pytest.mark.parametrize("group", ["model", *MODEL_GROUPS, "optimizer", "schedule"])
def test_every_shipped_choice_trains_and_loads_again(group, tmp_path, monkeypatch):
    text = write_text(tmp_path / "text.txt")
    for choice in sorted(f.stem for f in (conf_dir() / group).glob("*.yaml")):
        folder = tmp_path / choice
        options = (f"{group}={choice}", *NEEDS.get(choice, ()), f"hydra.run.dir={folder}")
        assert train(monkeypatch, f"data.train={text}", *options) == 0, choice
        assert math.isfinite(json.loads((folder / "metrics.json").read_text())["best/val/nats_per_char"])
        run = load_run(folder)
        assert run.model(torch.tensor([[run.vocabulary.end_id]])).isfinite().all(), choice


@pytest.mark.parametrize("experiment", sorted(file.stem for file in (conf_dir() / "experiment").glob("*.yaml")))
def test_every_experiment_is_a_model(experiment):
    register()
    with initialize_config_dir(str(conf_dir().resolve()), version_base="1.3"):
        config = compose("train", [f"experiment={experiment}"])
    validate(config)
    logits = build_model(to_plain(config), 7)(torch.arange(7)[None])
    assert logits.shape == (1, 7, 7)
    assert logits.isfinite().all()


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_precisions_train(precision, tmp_path, monkeypatch):
    text = write_text(tmp_path / "text.txt")
    for attention in ("dot_product", "contractive_l2"):
        folder = tmp_path / attention
        options = (f"trainer.precision={precision}", f"attention={attention}", f"hydra.run.dir={folder}")
        assert train(monkeypatch, f"data.train={text}", *options) == 0


class TestSchedules:
    def test_warmup_rises_linearly_to_one(self):
        assert [schedules.constant(step, warmup_steps=4) for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
        assert schedules.constant(0, warmup_steps=0) == 1

    def test_inverse_sqrt_is_that_of_the_original_transformer(self):
        peak = 400**-0.5
        for step in (0, 10, 399, 400, 1599):
            t = step + 1
            expected = min(t**-0.5, t * 400**-1.5) / peak
            assert schedules.inverse_sqrt(step, warmup_steps=400) == pytest.approx(expected)

    def test_cosine_ends_at_its_fraction_and_stays_there(self):
        options = {"warmup_steps": 10, "total_steps": 110, "final_fraction": 0.1}
        assert schedules.cosine(9, **options) == 1
        assert schedules.cosine(60, **options) == pytest.approx(0.55)
        assert schedules.cosine(110, **options) == pytest.approx(0.1)
        assert schedules.cosine(10_000, **options) == pytest.approx(0.1)


def test_only_matrices_decay():
    model = torch.nn.ModuleDict(
        {"linear": torch.nn.Linear(3, 4), "norm": torch.nn.LayerNorm(3), "embedding": torch.nn.Embedding(5, 3)}
    )
    decaying, others = parameter_groups(model)
    assert [p.shape for p in decaying["params"]] == [(4, 3)]
    assert "weight_decay" not in decaying
    assert others["weight_decay"] == 0
    assert sum(p.numel() for p in others["params"]) == 4 + 3 + 3 + 15


def test_what_stays_orthogonal_does_not_decay():
    model = torch.nn.ModuleDict(
        {"turn": orthogonal(torch.nn.Linear(3, 3, bias=False)), "linear": torch.nn.Linear(3, 4)}
    )
    decaying, others = parameter_groups(model)
    assert [p.shape for p in decaying["params"]] == [(4, 3)]
    assert [p.shape for p in others["params"]] == [(3, 3), (4,)]


def test_matrices_of_a_recurrence_decay():
    model = CharLSTM(5, width=4, depth=2, context=8)
    decaying, others = (group["params"] for group in parameter_groups(model))
    names = {id(p): name for name, p in model.named_parameters()}
    assert {names[id(p)] for p in decaying} == {
        "unembedding.weight",
        *(f"lstm.weight_{kind}_l{layer}" for kind in ("ih", "hh") for layer in (0, 1)),
    }
    assert len(decaying) + len(others) == len(names)


def test_an_option_that_the_class_lacks_is_named():
    with pytest.raises(UsageError, match=r"norm\.epz: LayerNorm has no such option"):
        factory({"_target_": "lipformer.modules.normalisations.LayerNorm", "epz": 1}, "norm")


def test_a_target_that_does_not_exist_is_named():
    with pytest.raises(UsageError, match=r"norm\._target_=lipformer.nothing.Here"):
        factory({"_target_": "lipformer.nothing.Here"}, "norm")
