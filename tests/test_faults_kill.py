"""SIGKILL at any moment of a run, once or twice, and of a sweep: continued, it ends as if nothing had happened."""

import random
import shutil

import pytest
from fault_counts import BEGUN_ANEW
from fault_trials import (
    PHASES,
    RUN,
    SEED,
    assert_equal_runs,
    has_checkpoint,
    random_moment,
    run_faulty,
    train_on,
)
from programs import write_text

from lipformer.runs.outcome import read_outcome

KILLS = 20
SIGKILL = -9


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    """An uninterrupted run: its folder, and what it told."""
    folder = tmp_path_factory.mktemp("whole")
    done = run_faulty(*RUN, f"data.train={text}", "hydra.run.dir=run", folder=folder)
    assert done.code == 0, done.errors
    return folder / "run", done.lines


def continue_run(folder, killed, command):
    """Do what docs/reliability.md says of a killed run; return the new folder, and the way."""
    if has_checkpoint(killed):
        assert read_outcome(killed).status == "killed"
        arguments, way = [f"resume={killed}"], "continued"
    else:
        arguments, way = command, BEGUN_ANEW
    done = train_on(folder / "continued", *arguments, by=folder)
    assert done.code == 0, done.errors
    return folder / "continued", way


def kill(folder, command, lines, phase, chance):
    """Kill a run of `command` at a random moment of a phase; return its folder and the line it told last."""
    for attempt in range(20):
        count, wait = random_moment(lines, phase, chance)
        done = run_faulty(*command, "hydra.run.dir=killed", folder=folder, kill_after=count, wait=wait)
        if done.code == SIGKILL:
            return folder / "killed", done.lines[-1][0].split()
        assert done.code == 0, done.errors  # it had come to its end before
        shutil.move(folder / "killed", folder / f"ended{attempt}")
    raise AssertionError(f"no kill came in time in {phase}")


@pytest.mark.fault("SIGKILL of a run")
@pytest.mark.slow  # quick: test_killed_in_saving
@pytest.mark.parametrize("number", range(KILLS))
def test_killed_at_a_random_moment(number, text, whole, tmp_path, record_property):
    chance = random.Random(SEED + number)
    command = (*RUN, f"data.train={text}")
    killed, (phase, step) = kill(tmp_path, command, whole[1], PHASES[number % len(PHASES)], chance)
    continued, way = continue_run(tmp_path, killed, command)
    for name, value in {"phase": phase, "step": step, "way": way, "seed": SEED + number}.items():
        record_property(name, value)
    assert_equal_runs(whole[0], continued)


@pytest.mark.parametrize(
    "line",
    [
        "saving 6",
        pytest.param("validation 12", marks=pytest.mark.slow),
        pytest.param("finishing 12", marks=pytest.mark.slow),
    ],
)
def test_killed_in_saving(line, text, whole, tmp_path):
    command = (*RUN, f"data.train={text}")
    done = run_faulty(*command, "hydra.run.dir=killed", folder=tmp_path, fault=f"SIGKILL {line}")
    assert (done.code, done.lines[-1][0]) == (SIGKILL, line), done.errors
    continued, way = continue_run(tmp_path, tmp_path / "killed", command)
    assert way == "continued"
    assert_equal_runs(whole[0], continued)


@pytest.mark.fault("SIGKILL of a run and of the run that continues it")
@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_killed_twice(number, text, whole, tmp_path, record_property):
    chance = random.Random(SEED + 100 + number)
    first = f"SIGKILL step {chance.randint(4, 6)}"
    done = run_faulty(*RUN, f"data.train={text}", "hydra.run.dir=first", folder=tmp_path, fault=first)
    assert done.code == SIGKILL, done.errors
    again = ("resume=first", "hydra.run.dir=killed")
    second = chance.choice(["saving 9", "step 10", "validation 12", "saving 12", "finishing 12"])
    done = run_faulty(*again, folder=tmp_path, fault=f"SIGKILL {second}")
    assert done.code == SIGKILL, done.errors
    continued, way = continue_run(
        tmp_path, tmp_path / ("killed" if has_checkpoint(tmp_path / "killed") else "first"), ()
    )
    phase, step = second.split()
    for name, value in {"phase": phase, "step": step, "way": way, "seed": SEED + 100 + number}.items():
        record_property(name, value)
    assert_equal_runs(whole[0], continued)
