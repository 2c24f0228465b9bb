"""What a wandb run begins with: its mode, its name and its tags."""

import logging
import os
from types import SimpleNamespace

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from wandb_account import no_account  # noqa: F401

from lipformer.errors import UsageError
from lipformer.training.loggers import wandb_mode
from lipformer.training.loggers.wandb_mode import describe_run, no_reports_to_wandb, resolve_mode

CONFIG = {"name": "tiny"}


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
    monkeypatch.setattr(wandb_mode, "has_credentials", lambda: credentials)
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
    monkeypatch.setattr(wandb_mode, "has_credentials", lambda: True)
    with caplog.at_level(logging.INFO):
        resolve_mode(mode)
    (line,) = caplog.messages
    assert f"WANDB_MODE={variable}" in line


def test_reports_of_the_client_are_off_unless_asked_for(monkeypatch):
    with no_reports_to_wandb():
        assert os.environ["WANDB_ERROR_REPORTING"] == "false"
    assert "WANDB_ERROR_REPORTING" not in os.environ
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "true")
    with no_reports_to_wandb():
        assert os.environ["WANDB_ERROR_REPORTING"] == "true"
    assert os.environ["WANDB_ERROR_REPORTING"] == "true"


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
    assert described["id"] != describe_run(CONFIG)["id"]
