"""TERM, HUP and USR1 between two steps of a run in a process of its own: continued, it ends as if nothing happened."""

import random

import pytest
from fault_trials import RUN, SEED, STEPS, assert_equal_runs, run_faulty, train_on
from programs import write_text

from lipformer.assembly.checkpoint import read_checkpoint
from lipformer.runs.outcome import read_outcome
from lipformer.system.signals import EXIT_CODES

BOUNDARIES = {name: random.Random(f"{SEED}{name}").randint(1, STEPS - 1) for name in EXIT_CODES}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    done = train_on(folder / "run", *RUN, f"data.train={text}", by=folder)
    assert done.code == 0, done.errors
    return folder / "run"


def stop_and_continue(name, line, text, whole, tmp_path, record_property):
    """Let a signal come at a line of what the run tells, and continue the run."""
    phase, step = line.split()
    for key, value in {"phase": phase, "step": step, "way": "continued", "seed": SEED}.items():
        record_property(key, value)
    command = (*RUN, f"data.train={text}", "hydra.run.dir=stopped")
    done = run_faulty(*command, folder=tmp_path, fault=f"{name} {line}")
    assert done.code == EXIT_CODES[name], done.errors
    assert done.errors.splitlines()[-1] == f"error: terminated by the system ({name})"
    assert read_outcome(tmp_path / "stopped").status == "terminated"
    assert read_checkpoint(tmp_path / "stopped" / "checkpoints" / "last.ckpt")["global_step"] == int(step)
    done = train_on(tmp_path / "continued", "resume=stopped", by=tmp_path)
    assert done.code == 0, done.errors
    assert_equal_runs(whole, tmp_path / "continued")


@pytest.mark.fault("TERM, HUP or USR1 between two steps")
@pytest.mark.parametrize(
    "name", ["SIGTERM", pytest.param("SIGHUP", marks=pytest.mark.slow), pytest.param("SIGUSR1", marks=pytest.mark.slow)]
)
def test_a_signal_at_a_random_boundary(name, text, whole, tmp_path, record_property):
    stop_and_continue(name, f"boundary {BOUNDARIES[name]}", text, whole, tmp_path, record_property)


@pytest.mark.fault("TERM, HUP or USR1 between two steps")
@pytest.mark.slow  # quick: tests/test_resume.py
@pytest.mark.parametrize(
    "step", [3, 6, STEPS]
)  # before a validation; also at the end of the epoch; after the last step
def test_a_signal_at_a_boundary_of_other_kinds_too(step, text, whole, tmp_path, record_property):
    stop_and_continue("SIGUSR1", f"boundary {step}", text, whole, tmp_path, record_property)


@pytest.mark.fault("TERM, HUP or USR1 in a validation")
@pytest.mark.slow  # quick: tests/test_resume.py
@pytest.mark.parametrize("step", [3, 6, STEPS])
def test_a_signal_in_a_validation(step, text, whole, tmp_path, record_property):
    stop_and_continue("SIGHUP", f"validation {step}", text, whole, tmp_path, record_property)
