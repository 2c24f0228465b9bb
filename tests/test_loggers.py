"""metrics.csv whatever the logger; samples and figures; TensorBoard and wandb beside a training."""

import io
import json
import os
import signal
import subprocess
import sys

import pytest
from programs import ROOT, start_train, train, wait_for, write_text
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.utilities import rank_zero_only
from wandb_account import no_account  # noqa: F401
from wandb_offline import CONFIG, end_with, offline_logger, warnings_of
from wandb_record import read_runs

from lipformer.errors import UsageError
from lipformer.runs.outcome import read_outcome
from lipformer.training.loggers.choices import finished, log_figures, log_samples, tensorboard_logger


def test_disabled_is_no_logger(tmp_path):
    assert offline_logger(tmp_path, mode="disabled") is None


# --- samples and figures -----------------------------------------------------------------------------------------

SENTENCES = ["the <unk> *sat*", "a_b_c  & <b>x</b>"]


@pytest.fixture
def figure(tmp_path):
    from PIL import Image

    file = tmp_path / "learning.png"
    Image.new("RGB", (4, 2), (255, 0, 10)).save(file)
    return file


def test_samples_and_figures_in_wandb(tmp_path, figure, caplog):
    logger = offline_logger(tmp_path)
    with finished(logger):
        logger.log_metrics({"train/tokens": 50.0}, 5)
        log_samples([CSVLogger(tmp_path / "csv"), logger], SENTENCES, step=7, tokens=90)
        log_figures([CSVLogger(tmp_path / "csv"), logger], [figure, figure.with_suffix(".pdf")])
    assert warnings_of(caplog) == []
    (run,) = read_runs(tmp_path)
    assert (run.summary["samples._type"], run.summary["figures/learning._type"]) == ("table-file", "image-file")
    files = next(tmp_path.glob("wandb/offline-run-*/files"))
    content = json.loads((files / run.history[1]["samples.path"]).read_text())
    assert content["columns"] == ["step", "tokens", "number", "sentence"]
    assert content["data"] == [[7, 90, 1, SENTENCES[0]], [7, 90, 2, SENTENCES[1]]]
    assert (run.history[1]["train/tokens"], run.history[1]["trainer/global_step"]) == (90, 7)
    assert (files / run.history[2]["figures/learning.path"]).read_bytes() == figure.read_bytes()
    assert {name.split(".")[0] for name in run.history[2] if "figures" in name} == {"figures/learning"}
    assert not (tmp_path / "csv").exists()


def test_samples_and_figures_in_tensorboard(tmp_path, figure, caplog):
    from PIL import Image
    from tensorboard import plugin_util
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    logger = tensorboard_logger(folder=tmp_path, config=CONFIG)
    log_samples([logger], SENTENCES, step=7, tokens=90)
    log_figures([logger], [figure, figure.with_suffix(".pdf")])
    logger.finalize("success")
    assert warnings_of(caplog) == []
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    (event,) = events.Tensors("samples/text_summary")
    assert event.step == 7
    (text,) = tensor_util.make_ndarray(event.tensor_proto).flatten()
    shown = plugin_util.markdown_to_safe_html(text)  # as its page shows it
    assert "the &lt;unk&gt; *sat*" in shown
    assert "a_b_c  &amp; &lt;b&gt;x&lt;/b&gt;" in shown
    (image,) = events.Images("figures/learning")
    assert (image.width, image.height) == (4, 2)
    with Image.open(io.BytesIO(image.encoded_image_string)) as shown_image:
        assert shown_image.convert("RGB").getpixel((3, 1)) == (255, 0, 10)


@pytest.mark.parametrize("what", ["samples", "figures"])
def test_trouble_with_samples_and_figures_is_a_warning(tmp_path, figure, caplog, monkeypatch, what):
    logger = offline_logger(tmp_path)
    with finished(logger), monkeypatch.context() as patch:
        patch.setattr(logger.experiment, "log", lambda row: end_with(OSError("disk full\nand more")))
        if what == "samples":
            log_samples([logger], SENTENCES, step=1, tokens=1)
        else:
            log_figures([logger], [figure])
    assert warnings_of(caplog) == [f"WandbRunLogger: the {what} were not logged: disk full"]


def test_samples_and_figures_are_logged_by_rank_zero_alone(tmp_path, figure, monkeypatch):
    loggers = [offline_logger(tmp_path / "run"), tensorboard_logger(folder=tmp_path / "run", config=CONFIG)]
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    log_samples(loggers, SENTENCES, step=1, tokens=1)
    log_figures(loggers, [figure])
    assert not (tmp_path / "run").exists()


# --- the program -----------------------------------------------------------------------------------------------


def test_csv_and_json_without_a_further_logger(monkeypatch, tmp_path):
    run = tmp_path / "run"
    assert train(monkeypatch, f"data.train={write_text(tmp_path / 'text')}", f"hydra.run.dir={run}") == 0
    assert "val/nats_per_char" in (run / "metrics.csv").read_text().splitlines()[0]
    assert json.loads((run / "metrics.json").read_text())["best/val/nats_per_char"] > 0
    assert not (run / "wandb").exists()
    assert not (run / "tensorboard").exists()


def test_tensorboard(monkeypatch, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    text = write_text(tmp_path / "text")
    assert train(monkeypatch, f"data.train={text}", f"hydra.run.dir={run}", "logger=tensorboard") == 0
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    (value,) = events.Scalars("val/nats_per_char")
    assert value.value == pytest.approx(read_outcome(run).best)
    assert (run / "metrics.csv").is_file()


def test_tensorboard_is_not_installed(monkeypatch, tmp_path):
    for package in ("_TENSORBOARD_AVAILABLE", "_TENSORBOARDX_AVAILABLE"):
        monkeypatch.setattr(f"lightning_fabric.loggers.tensorboard.{package}", False)
    with pytest.raises(UsageError, match=r"pip install 'lipformer\[tensorboard\]'"):
        tensorboard_logger(folder=tmp_path, config=CONFIG)


def test_wandb_offline(monkeypatch, tmp_path):
    run_folder = tmp_path / "run"
    text = write_text(tmp_path / "text")
    assert train(monkeypatch, f"data.train={text}", f"hydra.run.dir={run_folder}", "logger=wandb", "seed=7") == 0
    (run,) = read_runs(run_folder)
    assert run.exit_code == 0
    assert run.summary["val/nats_per_char"] == {"min": pytest.approx(read_outcome(run_folder).best)}
    assert {"val/nats_per_char", "val/bits_per_char", "*"} <= set(run.metrics)
    assert (run.config["seed"], run.config["trainer"]["max_steps"]) == (7, 3)
    assert "${" not in json.dumps(run.config)  # and plain data: it went through JSON
    assert (run.job_type, run.group) == ("train", "")
    assert all(row["train/tokens"] > 0 for row in run.history)
    assert "seed=7" in run.tags
    assert (run_folder / "metrics.csv").is_file()


def test_wandb_of_a_diverged_run(monkeypatch, tmp_path):
    run_folder = tmp_path / "run"
    options = ("logger=wandb", "lr=1e30", "schedule=constant", "trainer.gradient_clip=null", "trainer.max_steps=9")
    text = write_text(tmp_path / "text")
    assert train(monkeypatch, f"data.train={text}", f"hydra.run.dir={run_folder}", *options) == 3
    (run,) = read_runs(run_folder)
    assert (run.exit_code, run.summary["status"]) == (3, "diverged")


def test_unknown_wandb_mode_ends_the_program_with_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("WANDB_MODE", "off")
    text = write_text(tmp_path / "text")
    assert train(monkeypatch, f"data.train={text}", f"hydra.run.dir={tmp_path / 'run'}", "logger=wandb") == 2
    assert capsys.readouterr().err == "error: WANDB_MODE=off: it must be online, offline or disabled; or unset it\n"


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_signal_ends_the_sweep_and_its_run(tmp_path, sent, code):
    write_text(tmp_path / "text")
    process = start_train(
        "-m",
        "data.train=text",
        "seed=0,1",
        "hydra.sweep.dir=sweep",
        "trainer.max_steps=100000",
        "logger=wandb",
        folder=tmp_path,
    )
    job = tmp_path / "sweep" / "0"
    wait_for(job / "checkpoints" / "best.ckpt", process)
    os.killpg(process.pid, sent) if sent == signal.SIGINT else process.send_signal(sent)  # as a terminal, and kill, do
    output, errors = process.communicate(timeout=120)
    assert process.returncode == code, (output, errors)
    outcome = read_outcome(job)
    assert (outcome.status, outcome.exit_code) == ("interrupted" if sent == signal.SIGINT else "terminated", code)
    (run,) = read_runs(job)
    assert (run.exit_code, run.group, run.job_type) == (code, "sweep", "sweep")
    assert not (tmp_path / "sweep" / "1").exists()
    assert (job / "checkpoints" / "last.ckpt").is_file()


def test_wandb_and_tensorboard_are_imported_only_when_chosen():
    modules = "lipformer.training.run, lipformer.studies.workspace"
    never = "{'wandb', 'tensorboard', 'wandb_workspaces'}"
    check = f"import sys, {modules}; sys.exit(bool({never} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=True, timeout=120)


def test_no_address_of_the_service_is_written_down():
    host = "wandb" + ".ai"  # it has moved before; the client knows where to
    files = [p for folder in ("lipformer", "conf", "docs") for p in (ROOT / folder).rglob("*") if p.is_file()]
    assert [p for p in files if p.suffix in (".py", ".yaml", ".md") and host in p.read_text(encoding="utf-8")] == []
