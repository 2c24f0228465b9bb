"""SIGKILL of a whole sweep at any moment: resumed, each of its jobs ends as in the sweep that nothing interrupted."""

import random

import pytest
from fault_counts import BEGUN_ANEW
from fault_trials import RUN, SEED, assert_equal_runs, run_faulty
from programs import write_text

SEEDS = range(3)
SWEEP = ("-m", f"seed={','.join(map(str, SEEDS))}", *RUN, "trainer.max_steps=6")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    """An uninterrupted sweep: its folder, and what it told."""
    folder = tmp_path_factory.mktemp("whole")
    done = run_faulty(*SWEEP, f"data.train={text}", "hydra.sweep.dir=sweep", folder=folder)
    assert done.code == 0, done.errors
    return folder / "sweep", done.lines


def resume(folder):
    return run_faulty("-m", "sweep.resume=sweep", folder=folder)


def assert_equal_sweeps(one, two):
    for number in SEEDS:
        assert_equal_runs(one / str(number), two / str(number))


@pytest.mark.fault("SIGKILL of a sweep")
@pytest.mark.slow  # quick: test_a_sweep_killed_in_its_second_job
@pytest.mark.parametrize("number", range(5))
def test_a_sweep_killed_at_a_random_moment(number, text, whole, tmp_path, record_property):
    chance = random.Random(SEED + 200 + number)
    command = (*SWEEP, f"data.train={text}", "hydra.sweep.dir=sweep")
    lines = whole[1]
    at = chance.randrange(len(lines) - 1)
    wait = chance.uniform(0, lines[at + 1][1] - lines[at][1])
    done = run_faulty(*command, folder=tmp_path, kill_after=at + 1, wait=wait)
    assert done.code == -9, done.errors
    phase, step = done.lines[-1][0].split()
    begun = (tmp_path / "sweep" / "sweep.json").is_file()
    told = {"phase": phase, "step": step, "way": "continued" if begun else BEGUN_ANEW, "seed": SEED + 200 + number}
    for name, value in told.items():
        record_property(name, value)
    if begun:
        done = resume(tmp_path)
        assert done.code == 0, done.errors
    else:
        done = run_faulty(*command, folder=tmp_path)
        assert done.code == 0, done.errors
    assert_equal_sweeps(whole[0], tmp_path / "sweep")


def test_a_sweep_killed_in_its_second_job(text, whole, tmp_path):
    """Job 0 is left alone, job 1 continues in its own folder, without what the kill left of a file, and 2 begins."""
    lines = [line for line, _ in whole[1]]
    at = [i for i, line in enumerate(lines) if line == "saving 6"][2]  # best.ckpt and last.ckpt of job 0, then job 1
    command = (*SWEEP, f"data.train={text}", "hydra.sweep.dir=sweep")
    done = run_faulty(*command, folder=tmp_path, kill_after=at + 1)
    assert done.code == -9, done.errors
    first = (tmp_path / "sweep" / "0" / "status.json").stat().st_mtime_ns
    (tmp_path / "sweep" / "1" / "checkpoints" / f".last.ckpt.{done.pid}.part").write_bytes(b"half a checkpoint")
    done = resume(tmp_path)
    assert done.code == 0, done.errors
    assert (tmp_path / "sweep" / "0" / "status.json").stat().st_mtime_ns == first
    assert_equal_sweeps(whole[0], tmp_path / "sweep")
