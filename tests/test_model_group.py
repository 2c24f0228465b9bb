"""Another model than the Transformer, all the way: trained, interrupted, continued, evaluated, reported, swept."""

import json
import math
import subprocess
import sys

import pytest
import torch
import yaml
from programs import ROOT, evaluate, train, write_text
from test_resume import STEPS, assert_equal_ends, interrupt_at

from lipformer import certify, load_run
from lipformer.models.lstm import CharLSTM

LSTM = (
    "model=lstm",
    "depth=2",
    "dropout=0.2",
    f"trainer.max_steps={STEPS}",
    "data.batch_tokens=512",
    "callbacks=stability",
    "callbacks.stability.expensive_every_n_steps=5",
)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("models") / "text.txt")


@pytest.fixture(scope="module")
def lstm(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lstm") / "run"
    with pytest.MonkeyPatch.context() as patch:
        assert train(patch, *LSTM, f"data.train={text}", "trainer.report=true", f"hydra.run.dir={folder}") == 0
    return folder


def test_a_run_says_only_what_its_model_is_made_of(lstm):
    config = yaml.safe_load((lstm / "config.yaml").read_text())
    assert config["model"]["_target_"] == "lipformer.models.lstm.CharLSTM"
    assert {"depth", "width", "context", "dropout"} <= config.keys()
    assert not {"heads", "attention", "norm", "residual", "position"} & config.keys()
    run = load_run(lstm)
    assert isinstance(run.model, CharLSTM)
    assert run.config == config


def test_it_is_watched_reported_and_writes(lstm):
    metrics = json.loads((lstm / "metrics.json").read_text())
    assert metrics["stability/lstm/gradient_norm"] > 0
    assert metrics["stability/trunk/local_lipschitz"] > 0
    assert "not measured any more" not in (lstm / "train.log").read_text()
    assert metrics["best/val/nats_per_char"] < 3
    assert json.loads((lstm / "samples.json").read_text())["sentences"]
    assert "CharLSTM" in (lstm / "report.html").read_text()


def test_interrupted_and_continued_equals_uninterrupted(text, lstm, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_at(4, patch)
        assert train(patch, *LSTM, f"data.train={text}", f"hydra.run.dir={tmp_path / 'first'}") == 130
    assert train(monkeypatch, f"resume={tmp_path / 'first'}", f"hydra.run.dir={tmp_path / 'second'}") == 0
    assert_equal_ends(lstm, tmp_path / "second")
    more = (f"resume={lstm}", "model=transformer", f"hydra.run.dir={tmp_path / 'refused'}")
    assert train(monkeypatch, *more) == 2


def test_it_is_evaluated_and_generates(lstm, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "evaluation"
    assert evaluate(monkeypatch, f"checkpoint={lstm}", "split=valid", f"hydra.run.dir={folder}") == 0
    assert "CharLSTM (forget_bias=1.0)" in capsys.readouterr().out
    best = json.loads((lstm / "metrics.json").read_text())["best/val/nats_per_char"]
    assert json.loads((folder / "metrics.json").read_text())["val/nats_per_char"] == pytest.approx(best, abs=1e-5)
    written = tmp_path / "written"
    assert evaluate(monkeypatch, f"checkpoint={lstm}", "generate.samples=2", f"hydra.run.dir={written}") == 0
    sentences = json.loads((written / "samples.json").read_text())["sentences"]
    assert len(sentences) == 2
    assert all(len(sentence) < 64 for sentence in sentences), "as long as it was trained on"


def test_it_has_no_certificate_and_says_why(lstm, tmp_path, monkeypatch, capsys):
    certificate = certify(load_run(lstm).model)
    trunk, head = certificate.rows
    assert (trunk.name, trunk.bound, trunk.caveat) == ("trunk", math.inf, CharLSTM.caveat)
    assert math.isfinite(head.bound)
    assert certificate.trunk == certificate.logits == math.inf
    assert evaluate(monkeypatch, f"checkpoint={lstm}", "study=certify", f"hydra.run.dir={tmp_path / 'study'}") == 0
    assert CharLSTM.caveat in capsys.readouterr().out
    plain = json.loads((tmp_path / "study" / "certificate.json").read_text())
    assert plain["trunk"] == "inf"


def test_its_local_constant_can_be_penalised(text, tmp_path, monkeypatch):
    options = ("model=lstm", "regularizer=jacobian", f"data.train={text}", f"hydra.run.dir={tmp_path / 'run'}")
    assert train(monkeypatch, *options) == 0
    assert "train/regularizer" in (tmp_path / "run" / "metrics.csv").read_text()


def test_models_are_swept_beside_each_other(text, tmp_path, monkeypatch, capsys):
    sweep = ("-m", "model=transformer,lstm", f"data.train={text}", f"hydra.sweep.dir={tmp_path / 'sweep'}")
    assert train(monkeypatch, *sweep) == 0
    table = capsys.readouterr().out
    assert "model=transformer" in table
    assert "model=lstm" in table
    configs = [yaml.safe_load((tmp_path / "sweep" / job / "config.yaml").read_text()) for job in "01"]
    assert "attention" in configs[0]
    assert "attention" not in configs[1]


@pytest.mark.parametrize("typed", ["attention=l2", "attention.fused=false", "linear=dense", "+norm.colour=red"])
def test_what_the_model_does_not_have_is_refused_before_torch_is_imported(typed, tmp_path):
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['train.py', 'model=lstm', {typed!r}]\n"
        "try:\n"
        f"    runpy.run_path({str(ROOT / 'train.py')!r}, run_name='__main__')\n"
        "except SystemExit as leave:\n"
        "    assert leave.code == 2\n"
        "assert 'torch' not in sys.modules\n"
    )
    if typed == "attention.fused=false":
        code = code.replace("'model=lstm', ", "'model=lstm', 'attention=dot_product', ")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    group = typed.lstrip("+").split("=")[0].split(".")[0]
    assert "the model is CharLSTM, which has no " + group in line or "unknown key" in line


def test_an_experiment_is_trained_with_another_model(text, tmp_path, monkeypatch):
    options = ("experiment=ptb_small", "model=lstm", f"data.train={text}", f"hydra.run.dir={tmp_path / 'run'}")
    assert train(monkeypatch, *options) == 0
    again = (*options[:-1], "data=text_files", "trainer.max_steps=5", f"hydra.run.dir={tmp_path / 'again'}")
    size = ("depth=1", "width=16", "context=64")
    assert train(monkeypatch, *again, *size, f"resume={tmp_path / 'run'}") == 0


def test_a_model_that_does_not_say_what_it_reads_is_refused(tmp_path, monkeypatch, capsys):
    for reads in ("null", "[width,colour]"):
        assert train(monkeypatch, f"model.reads={reads}", "data.train=x", f"hydra.run.dir={tmp_path / 'run'}") == 2
        assert "model.reads" in capsys.readouterr().err


class Bigrams(torch.nn.Embedding):
    """The next character from the last one alone; of no size of its own."""

    def __init__(self, vocabulary_size):
        super().__init__(vocabulary_size, vocabulary_size)


def test_a_model_need_not_read_any_key(text, tmp_path, monkeypatch):
    options = (f"model._target_={__name__}.Bigrams", "model.reads=[]", "callbacks=stability", "trainer.threads=null")
    folder = tmp_path / "run"
    assert train(monkeypatch, "model=transformer", *options, f"data.train={text}", f"hydra.run.dir={folder}") == 0
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert not {"width", "heads", "depth", "dropout", "attention"} & config.keys()
    allowed = f"allow_targets=[{__name__}]"
    assert evaluate(monkeypatch, f"checkpoint={folder}", allowed, f"hydra.run.dir={tmp_path / 'figures'}") == 0
    more = (f"resume={folder}", allowed, "trainer.max_steps=5", f"hydra.run.dir={tmp_path / 'more'}")
    assert train(monkeypatch, *more) == 0


def test_weights_of_a_model_without_a_head_are_sized_too(lstm, tmp_path):
    checkpoint = torch.load(lstm / "checkpoints" / "best.ckpt", weights_only=True)
    for key, value in {"depth": 10**9, "width": 10**7}.items():
        config = {**checkpoint["lipformer"]["config"], key: value}
        torch.save({**checkpoint, "lipformer": {**checkpoint["lipformer"], "config": config}}, tmp_path / "bad.ckpt")
        with pytest.raises(Exception, match=f"{key} {value} with"):
            load_run(tmp_path / "bad.ckpt")
