"""The callbacks of a run: what is logged when, that watching changes nothing, and how a divergence is explained."""

import csv
import json
import signal
from pathlib import Path

import pytest
import torch
from programs import WATCHED, start_train, train, weights_of, write_text
from pytorch_lightning.callbacks import Callback
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb_record import read_runs

from lipformer import certify, load_run
from lipformer.assembly.build import build_callbacks, build_corpus
from lipformer.data.datamodule import CharDataModule
from lipformer.errors import UsageError
from lipformer.telemetry.attention import attention_statistics
from lipformer.telemetry.layers import pass_through
from lipformer.telemetry.probe import probe_batch
from lipformer.training.callbacks.samples import Samples
from lipformer.training.callbacks.stability import StabilityMonitor


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


def last_of(folder: Path, name: str) -> float:
    """The last value of a metric; rows of validations have none of most."""
    return [float(row[name]) for row in rows_of(folder) if row[name]][-1]


@pytest.fixture(scope="module")
def watched(tmp_path_factory) -> Path:
    """A run of seven steps with all callbacks; tests only read it."""
    folder = tmp_path_factory.mktemp("watched")
    text = write_text(folder / "text.txt", lines=200)
    with pytest.MonkeyPatch.context() as patch:
        code = train(
            patch,
            *WATCHED,
            f"data.train={text}",
            "attention=tied_l2",
            "depth=2",
            "trainer.max_steps=7",
            "trainer.report=true",
            f"hydra.run.dir={folder / 'run'}",
        )
    assert code == 0
    return folder / "run"


def test_run_folder_has_what_the_callbacks_leave(watched):
    names = {str(f.relative_to(watched)) for f in watched.rglob("*") if f.is_file()}
    assert {
        "certificate.json",
        "samples.json",
        "report.html",
        "figures/stability.png",
        "figures/stability.pdf",
    } <= names
    samples = json.loads((watched / "samples.json").read_text())
    assert (samples["step"], len(samples["sentences"])) == (7, 3)


def test_first_and_last_step_and_all_between_by_their_periods(watched):
    rows = rows_of(watched)
    steps = {
        name: [int(row["step"]) for row in rows if row[f"stability/{name}"]]
        for name in ("total/gradient_norm", "blocks.0/range_ratio", "trunk/local_lipschitz")
    }
    # Steps are counted from 0 in the column: the 1st, 2nd, 4th, 6th, and the 7th because it is the last.
    assert steps["blocks.0/range_ratio"] == [0, 1, 3, 5, 6]
    assert steps["total/gradient_norm"] == [0, 1, 3, 5, 6]
    assert steps["trunk/local_lipschitz"] == [0, 3, 6]
    assert all(row["train/tokens"] for row in rows), "every row has the x axis"
    tokens = [float(row["train/tokens"]) for row in sorted(rows, key=lambda row: int(row["step"]))]
    assert tokens == sorted(tokens)


def test_figures_are_those_of_the_final_weights(watched):
    run = load_run(watched, which="last")
    loader = run.config["data"]
    options = {key: loader[key] for key in ("max_length", "unknown", "batch_tokens", "num_workers")}
    data = CharDataModule(build_corpus(loader), context=64, seed=0, vocabulary=run.vocabulary, **options)
    data.setup("validate")
    sentences = data.val_dataloader().dataset
    passed = pass_through(run.model, probe_batch(sentences, 2, run.vocabulary.end_id))
    name = "blocks.1.attention.branch"
    for quantity, value in attention_statistics(run.model.blocks[1].attention.branch, passed[name].x).items():
        assert last_of(watched, f"stability/{name}/{quantity}") == pytest.approx(float(value), rel=1e-5, abs=1e-6)
    certificate = certify(run.model, "mixed")
    assert json.loads((watched / "certificate.json").read_text()) == certificate.to_plain()
    assert last_of(watched, "certificate/trunk/mixed") == certificate.trunk
    figures = json.loads((watched / "metrics.json").read_text())
    assert figures["certificate/trunk/mixed"] == certificate.trunk
    assert 0 < figures["stability/seconds"] < 3600


@pytest.mark.parametrize("attention", ["contractive_l2_decoupled", "dot_product"])
def test_watching_changes_nothing(attention, tmp_path, monkeypatch):
    text = write_text(tmp_path / "text.txt")
    more = (
        f"data.train={text}",
        f"attention={attention}",
        "trainer.max_steps=5",
        "dropout=0.1",
        "linear=sigma_reparam",
    )
    if attention == "contractive_l2_decoupled":
        more += ("residual=invertible", "feedforward=contractive")
    for name, callbacks in (("watched", WATCHED), ("alone", ())):
        assert train(monkeypatch, *more, *callbacks, f"hydra.run.dir={tmp_path / name}") == 0
    watched, alone = (weights_of(tmp_path / name) for name in ("watched", "alone"))
    assert all(torch.equal(tensor, alone[name]) for name, tensor in watched.items())
    quantities = {name.rpartition("/")[2] for name in rows_of(tmp_path / "watched")[-1]}
    assert ("reconstruction_error" in quantities) == (attention == "contractive_l2_decoupled")


def test_a_continued_run_is_watched_on(watched, tmp_path, monkeypatch):
    options = (f"resume={watched}", "trainer.max_steps=9", "trainer.report=false", f"hydra.run.dir={tmp_path / 'run'}")
    assert train(monkeypatch, *options) == 0
    rows = rows_of(tmp_path / "run")
    assert [int(row["step"]) for row in rows if row["stability/blocks.0/range_ratio"]] == [0, 1, 3, 5, 6, 7, 8]
    options = (f"resume={watched}", "trainer.max_steps=9", "trainer.report=false", "callbacks=none")
    assert train(monkeypatch, *options, f"hydra.run.dir={tmp_path / 'unwatched'}") == 0
    rows = rows_of(tmp_path / "unwatched")
    assert [int(row["step"]) for row in rows if row["stability/blocks.0/range_ratio"]] == [0, 1, 3, 5, 6]


def test_attention_without_a_softmax_is_watched(tmp_path, monkeypatch):
    text = write_text(tmp_path / "text.txt")
    folder = tmp_path / "run"
    options = ("attention=relu_kernel,cosine,sigmoid", "trainer.max_steps=1", f"hydra.sweep.dir={folder}", "-m")
    assert train(monkeypatch, *WATCHED, f"data.train={text}", *options) == 0
    for job, quantities in (("0", {"entropy"}), ("1", {"entropy", "logit_variance"}), ("2", {"entropy"})):
        names = {name.rpartition("/")[2] for name in rows_of(folder / job)[-1]}
        assert quantities <= names


@pytest.mark.parametrize("logger", ["tensorboard", "wandb"])
def test_every_logger_has_the_same_names(logger, tmp_path, monkeypatch):
    text = write_text(tmp_path / "text.txt")
    options = ("logger.mode=offline",) if logger == "wandb" else ()
    folder = tmp_path / "run"
    assert (
        train(monkeypatch, *WATCHED, f"data.train={text}", f"logger={logger}", *options, f"hydra.run.dir={folder}") == 0
    )
    names = {name for name in rows_of(folder)[0] if name.startswith(("stability/", "certificate/", "train/", "val/"))}
    assert len(names) > 100
    if logger == "wandb":
        (run,) = read_runs(folder)
        logged = {name for row in run.history for name in row}
    else:
        events = EventAccumulator(str(folder / "tensorboard"))
        logged = set(events.Reload().Tags()["scalars"])
    assert names <= logged


# --- what fails is given up --------------------------------------------------------------------------------------


def test_a_measurement_that_fails_is_given_up_and_the_run_goes_on(tmp_path, monkeypatch, caplog):
    def refuse(*arguments, **options):
        raise RuntimeError("derivative is not implemented\nand more")

    for name in ("certify", "inversion_statistics", "range_statistics"):
        monkeypatch.setattr(f"lipformer.training.callbacks.stability.{name}", refuse)
    monkeypatch.setattr("lipformer.training.callbacks.samples.sample", refuse)
    folder, text = tmp_path / "run", write_text(tmp_path / "text.txt")
    assert train(monkeypatch, *WATCHED, f"data.train={text}", "trainer.max_steps=4", f"hydra.run.dir={folder}") == 0
    log = (folder / "train.log").read_text()
    for what in ("ranges", "inverses", "certificates"):
        assert (
            log.count(f"stability: {what} are not measured any more: RuntimeError: derivative is not implemented") == 1
        )
    assert "no samples were written: RuntimeError" in log
    assert last_of(folder, "stability/trunk/local_lipschitz") > 0


def test_pictures_that_fail_do_not_fail_the_run(tmp_path, monkeypatch, capsys):
    def refuse(*arguments):
        raise ImportError("no such library")

    monkeypatch.setattr("lipformer.figures.draw_run", refuse)
    monkeypatch.setattr("lipformer.report.write_report", refuse)
    text = write_text(tmp_path / "text.txt")
    assert train(monkeypatch, f"data.train={text}", "trainer.report=true", f"hydra.run.dir={tmp_path / 'run'}") == 0
    shown = capsys.readouterr().out
    assert "the report could not be written (ImportError: no such library)" in shown
    assert "the figures could not be drawn (ImportError: no such library)" in shown


@pytest.mark.parametrize(
    "options",
    [
        ("feedforward=none", "residual=pre_norm", "attention=dot_product"),
        ("feedforward=none", "residual=invertible", "norm=none", "attention=contractive_l2"),
        ("trainer.precision=bf16-true", "residual=weighted", "norm=center_norm"),
        ("trainer.precision=bf16-mixed", "attention=contractive_l2_decoupled", "dropout=0.1"),
        ("trainer.precision=64-true", "residual=convex", "attention=qk_norm", "position=learned"),
    ],
    ids=" ".join,
)
def test_every_kind_of_model_is_watched(options, tmp_path, monkeypatch):
    folder, text = tmp_path / "run", write_text(tmp_path / "text.txt")
    assert train(monkeypatch, *WATCHED, f"data.train={text}", *options, f"hydra.run.dir={folder}") == 0
    assert "not measured any more" not in (folder / "train.log").read_text()
    assert last_of(folder, "stability/trunk/local_lipschitz") > 0


# --- the group -------------------------------------------------------------------------------------------------


class Mine(Callback):
    def __init__(self, steps: int = 1):
        if steps < 1:
            raise ValueError("steps must be at least 1")


def test_a_callback_of_ones_own():
    (mine,) = build_callbacks({"mine": {"_target_": "test_stability.Mine", "steps": 2}})
    assert isinstance(mine, Mine)


@pytest.mark.parametrize(
    ("node", "says"),
    [
        ({"_target_": "test_stability.Mine", "steps": 0}, "callbacks.mine: steps must be at least 1"),
        ({"_target_": "pathlib.Path"}, "it is no Lightning callback"),
        ({"steps": 1}, "it names no class"),
        ("a string", "it names no class"),
        ({"_target_": "nowhere.Callback"}, "callbacks.mine._target_=nowhere.Callback"),
        ({"_target_": "test_stability.Mine", "step": 1}, "has no such option"),
    ],
)
def test_what_is_no_callback_is_one_line(node, says):
    with pytest.raises(UsageError) as error:
        build_callbacks({"mine": node})
    assert says in str(error.value)


@pytest.mark.parametrize(
    "override",
    [
        "callbacks.stability.every_n_steps=0",
        "callbacks.stability.expensive_every_n_steps=0",
        "callbacks.stability.sentences=0",
        "callbacks.stability.p=3",
        "callbacks.divergence_guard.loss_above=0",
        "callbacks.divergence_guard.patience=0",
        "callbacks.samples.sentences=0",
        "callbacks.samples.temperature=-1",
        "callbacks.samples.max_chars=0",
    ],
)
def test_options_have_ranges(override, monkeypatch, tmp_path, capsys):
    text = write_text(tmp_path / "text.txt")
    assert train(monkeypatch, "callbacks=stability", f"data.train={text}", override) == 2
    key = override.partition("=")[0]
    assert key in capsys.readouterr().err


def test_null_leaves_a_callback_out():
    assert build_callbacks({"mine": None}) == []


@pytest.mark.parametrize("left_out", ["~callbacks.samples", "callbacks.samples=null"])
def test_a_continued_run_can_leave_one_out(left_out, watched, tmp_path, monkeypatch):
    options = (f"resume={watched}", "trainer.max_steps=8", "trainer.report=false", f"hydra.run.dir={tmp_path / 'run'}")
    assert train(monkeypatch, *options, left_out) == 0
    assert not (tmp_path / "run" / "samples.json").exists()


@pytest.mark.parametrize("callbacks", [[], "text", {1: {}}, {"x": 3}, {"x": {"_target_": "os.system"}}])
def test_altered_callbacks_of_a_checkpoint_are_refused(callbacks, watched, tmp_path, monkeypatch, capsys):
    checkpoint = torch.load(watched / "checkpoints" / "last.ckpt", weights_only=True)
    checkpoint["lipformer"]["config"]["callbacks"] = callbacks
    torch.save(checkpoint, tmp_path / "altered.ckpt")
    options = (f"resume={tmp_path / 'altered.ckpt'}", "trainer.max_steps=9", f"hydra.run.dir={tmp_path / 'run'}")
    assert train(monkeypatch, *options) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "callbacks" in error


@pytest.mark.parametrize("options", [{"sentences": "x"}, {"sentences": -1}, {"temperature": "x"}, {"max_chars": -3}])
def test_samples_check_their_options(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Samples(**({"sentences": 1, "temperature": 1.0, "max_chars": 9} | options))


def test_an_interrupt_after_the_last_step_is_passed_on(tmp_path, monkeypatch):
    monkeypatch.setattr(Samples, "_write", lambda *a: signal.raise_signal(signal.SIGINT))
    folder, text = tmp_path / "run", write_text(tmp_path / "text.txt")
    assert train(monkeypatch, *WATCHED, f"data.train={text}", f"hydra.run.dir={folder}") == 130
    assert json.loads((folder / "status.json").read_text())["status"] == "interrupted"


@pytest.mark.parametrize(("nats", "status", "code"), [(20, "interrupted", 130), (0.01, "diverged", 3)])
@pytest.mark.parametrize("what", ["lipformer.figures.draw_run", "lipformer.report.write_report"])
def test_an_interrupt_in_the_pictures_hides_no_divergence(what, nats, status, code, tmp_path, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(what, interrupt)
    folder, text = tmp_path / "run", write_text(tmp_path / "text.txt")
    guard = (f"callbacks.divergence_guard.loss_above={nats}", "callbacks.divergence_guard.patience=1")
    options = (f"data.train={text}", "trainer.report=true", f"hydra.run.dir={folder}")
    assert train(monkeypatch, *guard, *options) == code
    assert json.loads((folder / "status.json").read_text())["status"] == status


def test_a_pipe_that_nobody_reads_costs_nothing(tmp_path):
    folder, text = tmp_path / "run", write_text(tmp_path / "text.txt")
    process = start_train(f"data.train={text}", f"hydra.run.dir={folder}", folder=tmp_path)
    process.stdout.close()
    errors = process.stderr.read()
    process.wait(300)
    assert json.loads((folder / "status.json").read_text())["status"] == "finished", errors
    assert "Traceback" not in errors


def test_monitor_checks_its_options():
    for options in ({"every_n_steps": 0}, {"expensive_every_n_steps": 0.5}, {"sentences": 0}, {"p": 3}):
        with pytest.raises(ValueError, match=next(iter(options))):
            StabilityMonitor(**({"every_n_steps": 1, "expensive_every_n_steps": 1, "sentences": 1, "p": 2} | options))
