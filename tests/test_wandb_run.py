"""One wandb run for each training run, ended with its exit code."""

import math
import os
import signal
import sys

import pytest
from pytorch_lightning.utilities import rank_zero_only
from wandb_account import no_account  # noqa: F401
from wandb_offline import end_with, offline_logger, warnings_of
from wandb_record import read_runs

from lipformer.errors import DivergedError, Pruned
from lipformer.system.signals import Terminated
from lipformer.tasks import LANGUAGE
from lipformer.training.loggers import wandb_run
from lipformer.training.loggers.choices import finished, log_samples
from lipformer.training.loggers.wandb_run import WandbRunLogger, extremes

EXTREMES = extremes(LANGUAGE)


def environment_now():
    """Without the client's own note of its process, which comes and goes with it."""
    return {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (None, 0, "finished"),
        (RuntimeError("broken"), 1, "failed"),
        (DivergedError("nan"), 3, "diverged"),
        (Pruned("hopeless"), 0, "pruned"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (Terminated(signal.SIGTERM), 143, "terminated"),
        (Terminated(signal.SIGHUP), 129, "terminated"),
    ],
)
def test_run_ends_with_the_exit_code(tmp_path, error, code, status):
    hooks, environment = (sys.exit, sys.excepthook), environment_now()
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
    assert environment_now() == environment


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
    """By the client's settings: whether a run this short lasts until the first sample is a matter of luck."""
    logger = offline_logger(tmp_path)
    with finished(logger):
        settings = logger.experiment.settings
    assert settings.x_disable_stats is False
    assert settings.x_disable_machine_info is False


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


def test_is_a_lightning_wandb_logger(tmp_path):
    logger = offline_logger(tmp_path)
    assert isinstance(logger, WandbRunLogger)
    assert (logger.name, logger.save_dir, logger.version) == ("tests", str(tmp_path), None)
