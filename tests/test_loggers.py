"""metrics.csv whatever the logger; TensorBoard; one wandb run for each training run, ended with its exit code."""

import io
import json
import logging
import math
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from programs import ROOT, start_train, train, wait_for, write_text
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.utilities import rank_zero_only
from wandb_account import FAKE_KEY, no_account  # noqa: F401
from wandb_record import read_runs
from wandb_server import serving

from lipformer.errors import DivergedError, UsageError
from lipformer.run_folder import read_outcome
from lipformer.training import wandb_run
from lipformer.training.loggers import finished, log_figures, log_samples, tensorboard_logger, wandb_logger
from lipformer.training.wandb_run import (
    EXTREMES,
    WandbRunLogger,
    describe_run,
    earlier_run_id,
    no_reports_to_wandb,
    resolve_mode,
)

CONFIG = {"name": "tiny", "depth": 1, "attention": {"p": "mixed"}, "resume": None}


def offline_logger(folder, **changes):
    options = {"project": "tests", "entity": None, "mode": "offline", "init_timeout": 5, "finish_timeout": 5}
    return wandb_logger(folder=folder, config=CONFIG, **(options | changes))


def warnings_of(caplog):
    return [r.message for r in caplog.records if r.levelno >= logging.WARNING and r.name.startswith("lipformer")]


# --- the mode --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "variable", "credentials", "resolved"),
    [
        ("auto", None, True, "online"),
        ("auto", None, False, "offline"),
        ("auto", "online", True, "online"),
        ("auto", "offline", True, "offline"),
        ("auto", "dryrun", True, "offline"),
        ("auto", "run", True, "online"),
        ("auto", "disabled", True, "disabled"),
        ("online", None, True, "online"),
        ("online", "offline", True, "online"),
        ("offline", None, True, "offline"),
        ("offline", "online", True, "offline"),
        ("disabled", None, True, "disabled"),
    ],
)
def test_mode(monkeypatch, mode, variable, credentials, resolved):
    if variable is not None:
        monkeypatch.setenv("WANDB_MODE", variable)
    monkeypatch.setattr(wandb_run, "has_credentials", lambda: credentials)
    assert resolve_mode(mode) == resolved


@pytest.mark.parametrize("mode", ["auto", "online", "offline", "disabled"])
@pytest.mark.parametrize("variable", ["off", ""])
def test_unknown_wandb_mode_is_refused(monkeypatch, mode, variable):
    monkeypatch.setenv("WANDB_MODE", variable)
    with pytest.raises(UsageError, match=f"WANDB_MODE={variable}: it must be online, offline or disabled"):
        resolve_mode(mode)


@pytest.mark.parametrize(("mode", "variable"), [("online", None), ("auto", "online")])
def test_online_without_a_key_is_refused(monkeypatch, mode, variable):
    if variable:
        monkeypatch.setenv("WANDB_MODE", variable)
    with pytest.raises(UsageError, match="no API key; run `wandb login`"):
        resolve_mode(mode)


def test_malformed_key_is_refused(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "short")
    with pytest.raises(UsageError, match=r"WANDB_API_KEY invalid.*; correct the key") as error:
        resolve_mode("auto")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("mode", "variable"), [("auto", "offline"), ("online", "offline")])
def test_says_which_of_the_two_decides(monkeypatch, caplog, mode, variable):
    monkeypatch.setenv("WANDB_MODE", variable)
    monkeypatch.setattr(wandb_run, "has_credentials", lambda: True)
    with caplog.at_level(logging.INFO):
        resolve_mode(mode)
    (line,) = caplog.messages
    assert f"WANDB_MODE={variable}" in line


def test_disabled_is_no_logger(tmp_path):
    assert offline_logger(tmp_path, mode="disabled") is None


# --- the run ---------------------------------------------------------------------------------------------------


def end_with(error):
    if error is not None:
        raise error


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (None, 0, "finished"),
        (RuntimeError("broken"), 1, "failed"),
        (DivergedError("nan"), 3, "diverged"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (SystemExit(), 143, "interrupted"),
    ],
)
def test_run_ends_with_the_exit_code(tmp_path, error, code, status):
    hooks, environment = (sys.exit, sys.excepthook), dict(os.environ)
    logger = offline_logger(tmp_path)
    with pytest.raises(type(error)) if error else finished(None), finished(logger):
        for step, nats in enumerate((3.0, 2.0, 2.5)):
            logger.log_metrics({"val/nats_per_char": nats}, step)
        end_with(error)
    (run,) = read_runs(tmp_path)
    assert (run.exit_code, run.summary["status"]) == (code, status)
    assert run.summary["val/nats_per_char"] == {"min": 2.0}
    assert [row["trainer/global_step"] for row in run.history] == [0, 1, 2]
    assert run.config["depth"] == 1
    assert run.config["attention"] == {"p": "mixed"}
    assert (sys.exit, sys.excepthook) == hooks
    assert {k: v for k, v in os.environ.items() if k != "WANDB_SERVICE"} == environment


def test_metrics_over_tokens_and_the_summaries(tmp_path):
    logger = offline_logger(tmp_path)
    rows = {  # step: values
        1: {"val/nats_per_char": 2.5, "val/bits_per_char": 3.6, "train/gradient_norm": 1.0, "train/lr": 0.1},
        2: {"val/nats_per_char": 2.0, "val/bits_per_char": 2.9, "train/gradient_norm": 9.0, "train/lr": 0.3},
        3: {"val/nats_per_char": 2.2, "val/bits_per_char": 3.2, "train/gradient_norm": 3.0, "train/lr": 0.2},
    }
    telemetry = ("stability/total/entropy_share", "stability/total/gradient_norm", "stability/blocks.0/std_ratio")
    with finished(logger):
        for step, row in rows.items():
            logger.log_metrics({**row, **dict.fromkeys(telemetry, step / 4), "train/tokens": 100.0 * step}, step)
        logger.log_metrics({"certificate/trunk/mixed": math.inf}, 3)  # a row without its tokens
    (run,) = read_runs(tmp_path)
    assert run.metrics["*"].glob_name == "*"
    axes = {name: metric.step_metric for name, metric in run.metrics.items()}
    assert (axes.pop("train/tokens"), axes.pop("trainer/global_step")) == ("", "")
    assert set(axes.values()) == {"train/tokens"}
    assert set(axes) == {"*", *EXTREMES}
    assert [row["train/tokens"] for row in run.history] == [100, 200, 300, 300]
    assert [row["trainer/global_step"] for row in run.history] == [1, 2, 3, 3]
    expected = {
        "val/nats_per_char": {"min": 2.0},
        "val/bits_per_char": {"min": 2.9},
        "stability/total/entropy_share": {"min": 0.25},
        "stability/total/gradient_norm": {"max": 0.75},
        "train/gradient_norm": {"max": 9.0},
        "stability/blocks.0/std_ratio": 0.75,
        "train/lr": 0.2,
        "train/tokens": 300,
        "certificate/trunk/mixed": math.inf,
    }
    assert {name: run.summary[name] for name in expected} == expected


@pytest.mark.parametrize("name", EXTREMES)
def test_a_nan_does_not_become_the_extreme(tmp_path, name):
    logger = offline_logger(tmp_path)
    with finished(logger):
        for value in (3.0, math.nan, 2.0):
            logger.log_metrics({name: value, "stability/trunk/std_ratio": value}, 0)
    (run,) = read_runs(tmp_path)
    assert run.summary[name] == {EXTREMES[name]: 2.0 if EXTREMES[name] == "min" else 3.0}
    assert [name in row for row in run.history] == [True, False, True]
    assert math.isnan(run.history[1]["stability/trunk/std_ratio"])  # of the others it is left to be seen


def test_the_machine_is_recorded(tmp_path):
    logger = offline_logger(tmp_path)
    with finished(logger):
        _ = logger.experiment
    (run,) = read_runs(tmp_path)
    assert any(name.startswith("memory") or name.startswith("proc.memory") for name in run.system)
    assert "network.recv" in run.system


def test_trouble_with_rows_is_one_warning(tmp_path, caplog, monkeypatch):
    logger = offline_logger(tmp_path)
    forgotten = []
    monkeypatch.setattr(wandb_run, "_forget_the_client", lambda: forgotten.append(True))
    with finished(logger), monkeypatch.context() as patch:
        patch.setattr(logger.experiment, "log", lambda row: end_with(ConnectionResetError("Connection lost")))
        for step in range(3):
            logger.log_metrics({"train/lr": 1.0}, step)
        log_samples([logger], ["a"], 3, 10)
    rows, samples = warnings_of(caplog)
    assert rows == "wandb: rows are being lost (Connection lost); metrics.csv has them all"
    assert samples == "WandbRunLogger: the samples were not logged: Connection lost"
    assert forgotten == [True]  # for the next job of a sweep


def test_reports_of_the_client_are_off_unless_asked_for(monkeypatch):
    with no_reports_to_wandb():
        assert os.environ["WANDB_ERROR_REPORTING"] == "false"
    assert "WANDB_ERROR_REPORTING" not in os.environ
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "true")
    with no_reports_to_wandb():
        assert os.environ["WANDB_ERROR_REPORTING"] == "true"
    assert os.environ["WANDB_ERROR_REPORTING"] == "true"


def test_a_run_left_open_is_not_taken_over(tmp_path):
    import wandb

    left_open = wandb.init(mode="offline", dir=tmp_path / "left", settings=wandb.Settings(silent=True, console="off"))
    logger = offline_logger(tmp_path)
    with finished(logger):
        assert logger.experiment.id != left_open.id
    assert wandb.run is None


def test_no_run_without_a_trainer_and_on_other_ranks(tmp_path, monkeypatch):
    logger = offline_logger(tmp_path)
    with finished(logger):
        pass
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    with finished(logger):
        logger.experiment.log({"val/nats_per_char": 1.0})
        logger.log_metrics({"val/nats_per_char": 1.0}, 0)
    assert list(tmp_path.iterdir()) == []


def test_trouble_at_the_end_does_not_fail_the_training(tmp_path, caplog, monkeypatch):
    logger = offline_logger(tmp_path)

    def time_out(exit_code):
        raise TimeoutError("Timed out finishing run.")

    with finished(logger):
        run = logger.experiment
        finish = run.finish
        monkeypatch.setattr(run, "finish", time_out)
    finish()
    (line,) = warnings_of(caplog)
    assert "not all was uploaded (Timed out finishing run.); try: wandb sync" in line


# --- online, with the client's `init` replaced -----------------------------------------------------------------


class Init:
    """Stands for `wandb.init`: takes online runs as told, and begins the others as the client does."""

    def __init__(self, refuse=False):
        import wandb

        self.calls, self.refuse, self.begin, self.error = [], refuse, wandb.init, wandb.errors.CommError

    def __call__(self, **options):
        self.calls.append(options)
        if options["mode"] == "offline":
            return self.begin(**options)
        if self.refuse:
            (options["dir"] / "wandb" / "run-20260101_000000-shell").mkdir(parents=True)
            raise self.error("no answer\nConsider increasing the init_timeout")
        nothing = lambda *args, **kwargs: None  # noqa: E731
        methods = {"define_metric": nothing, "finish": nothing, "summary": SimpleNamespace(update=nothing)}
        folder = options["dir"] / "wandb" / "run-20260101_000000-id1"
        return SimpleNamespace(id="id1", url="https://host/id1", dir=str(folder / "files"), **methods)


@pytest.fixture
def online(monkeypatch):
    def build(folder, init, **config):
        monkeypatch.setattr("wandb.init", init)
        monkeypatch.setattr(wandb_run, "has_credentials", lambda: True)
        options = {"project": "tests", "entity": "us", "mode": "online", "init_timeout": 5, "finish_timeout": 6}
        return wandb_logger(folder=folder, config=CONFIG | config, **options)

    return build


def test_online_run(tmp_path, online, caplog):
    init = Init()
    logger = online(tmp_path, init)
    with caplog.at_level(logging.INFO), finished(logger):
        _ = logger.experiment
    (options,) = init.calls
    assert (options["project"], options["entity"], options["dir"]) == ("tests", "us", tmp_path)
    assert options["reinit"] == "finish_previous"
    assert "id" not in options
    assert "resume" not in options
    assert type(options["config"]) is dict
    assert (options["settings"].init_timeout, options["settings"].finish_timeout) == (5, 6)
    assert "wandb: https://host/id1" in caplog.messages
    assert earlier_run_id(str(tmp_path)) == "id1"


def test_server_that_does_not_answer_turns_the_run_offline(tmp_path, online, caplog):
    init = Init(refuse=True)
    logger = online(tmp_path, init)
    with finished(logger):
        logger.log_metrics({"val/nats_per_char": 2.0}, 0)
    assert [call["mode"] for call in init.calls] == ["online", "offline"]
    assert warnings_of(caplog) == ["wandb: offline, as the server did not take the run: no answer"]
    (run,) = read_runs(tmp_path)
    assert run.exit_code == 0
    assert not list(tmp_path.glob("wandb/run-*"))
    assert not (tmp_path / "wandb.json").exists()


@pytest.mark.parametrize("resume", ["", "checkpoints/last.ckpt"])
def test_a_continued_run_continues_its_online_run(tmp_path, online, resume):
    before, after = tmp_path / "before", tmp_path / "after"
    (before / "checkpoints").mkdir(parents=True)
    after.mkdir()
    (before / "checkpoints" / "last.ckpt").touch()
    (before / "wandb.json").write_text(json.dumps({"id": "id0", "url": "https://host/id0"}))
    init = Init()
    _ = online(after, init, resume=str(before / resume)).experiment
    (options,) = init.calls
    assert (options["id"], options["resume"]) == ("id0", "allow")
    assert "name" not in options


def test_a_continued_run_is_a_new_one_where_the_old_was_offline(tmp_path):
    assert earlier_run_id(str(tmp_path)) is None
    assert earlier_run_id(None) is None


# --- its name --------------------------------------------------------------------------------------------------


@pytest.fixture
def hydra_job(monkeypatch):
    def set_job(mode, *overrides):
        job = SimpleNamespace(
            mode=mode,
            overrides=SimpleNamespace(task=list(overrides)),
            sweep=SimpleNamespace(dir="runs/x/date-sweep"),
        )
        monkeypatch.setattr(HydraConfig, "initialized", lambda: True)
        monkeypatch.setattr(HydraConfig, "get", lambda: job)

    return set_job


def test_named_after_what_was_typed(hydra_job):
    long = "data.train=" + "x" * 60
    hydra_job(RunMode.RUN, "attention=tied_l2", "logger=wandb", "+logger.x=1", "trainer.max_steps=3", "lr=0.1", long)
    assert describe_run(CONFIG) == {
        "name": f"attention=tied_l2 lr=0.1 {long}",
        "group": None,
        "job_type": "train",
        "tags": ["attention=tied_l2", "lr=0.1"],
    }


def test_named_after_the_experiment_where_nothing_was_typed(hydra_job):
    hydra_job(RunMode.RUN, "logger=wandb")
    assert describe_run(CONFIG)["name"] == "tiny"


def test_a_sweep_is_a_group_and_names_have_an_end(hydra_job):
    hydra_job(RunMode.MULTIRUN, *(f"attention.key{i}=1" for i in range(40)))
    described = describe_run(CONFIG)
    assert (described["group"], described["job_type"]) == ("date-sweep", "sweep")
    assert len(described["name"]) == 128


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


@pytest.mark.slow  # quick: test_online_run, test_a_continued_run_continues_its_online_run
def test_online_run_and_its_continuation_with_the_real_client(tmp_path):
    write_text(tmp_path / "text")
    with serving() as server:
        for arguments in (
            ("hydra.run.dir=first", "data.train=text", "seed=7"),
            ("hydra.run.dir=second", "resume=first", "trainer.max_steps=6"),
        ):
            process = start_train(
                *arguments, "logger=wandb", folder=tmp_path, WANDB_BASE_URL=server.address, WANDB_API_KEY=FAKE_KEY
            )
            output, errors = process.communicate(timeout=180)
            assert process.returncode == 0, errors
            assert f"wandb: {server.address}/" in output
    ((run, requests),) = server.runs.items()
    assert server.exit_codes == {run: 0}
    assert json.loads(requests[0]["config"])["seed"] == {"value": 7}
    assert "seed=7" in requests[0]["displayName"]
    assert not any("resume" in (request["displayName"] or "") for request in requests)
    assert earlier_run_id(str(tmp_path / "second")) == run


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
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
    assert (outcome.status, outcome.exit_code) == ("interrupted", code)
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


def test_is_a_lightning_wandb_logger(tmp_path):
    logger = offline_logger(tmp_path)
    assert isinstance(logger, WandbRunLogger)
    assert (logger.name, logger.save_dir, logger.version) == ("tests", str(tmp_path), None)
