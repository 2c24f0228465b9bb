"""Whole sweeps by each launcher, which end as with the basic one, are stopped, killed, preempted and resumed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from programs import ROOT, start_sweep, weights_of

from lipformer.runs import layout
from lipformer.runs.outcome import read_outcome
from lipformer.runs.sweep import read_jobs

LAUNCHERS = ["joblib", "submitit_local", "ray"]


def skip_without(launcher):
    pytest.importorskip(launcher.partition("_")[0])


@pytest.fixture(scope="module")
def basic(tmp_path_factory):
    """What the basic launcher makes of a sweep: finished, diverged, and two that fail."""
    folder = tmp_path_factory.mktemp("basic")
    process = start_sweep(folder, "basic", *MIXED, "hydra.sweep.dir=sweep")
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 1, errors
    return folder / "sweep"


MIXED = ("lr=1e-3,1e38,nan", "dropout=0.2", "trainer.max_steps=8", "seed=1,2")


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher_ends_as_the_basic_one(launcher, basic, tmp_path):
    skip_without(launcher)
    process = start_sweep(tmp_path, launcher, *MIXED, "hydra.sweep.dir=sweep")
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 1, errors
    jobs, expected = read_jobs(tmp_path / "sweep"), read_jobs(basic)
    assert {job.outcome.status for job in expected} == {"finished", "diverged", "failed"}
    assert [job.outcome for job in jobs] == [job.outcome for job in expected]
    assert [job.overrides[-3:] for job in jobs] == [job.overrides[-3:] for job in expected]
    for mine, other in zip(jobs, expected, strict=True):
        if other.outcome.status == "finished":
            weights, theirs = weights_of(mine.folder), weights_of(other.folder)
            assert all(torch.equal(weights[key], theirs[key]) for key in theirs)


LONG = ("trainer.max_steps=20000", "trainer.val_every_steps=10000", "seed=1,2,3")


def begun(folder, process, count=1):
    """Wait until so many jobs of the sweep train; return their folders."""
    deadline = time.monotonic() + 180
    while len(found := sorted(folder.glob("*/metrics.csv"))) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return [file.parent for file in found]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(("number", "code", "status"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated")])
def test_a_sweep_that_is_asked_to_end_saves_its_jobs(launcher, number, code, status, tmp_path):
    skip_without(launcher)
    process = start_sweep(tmp_path, launcher, *LONG, "hydra.sweep.dir=sweep", *two_at_once(launcher))
    running = begun(tmp_path / "sweep", process, count=2)
    os.kill(process.pid, getattr(signal, number))
    output, errors = process.communicate(timeout=180)
    assert process.returncode == code, errors
    assert "the jobs that run are stopping, no other begins" in errors
    statuses = [job.outcome.status for job in read_jobs(tmp_path / "sweep")]
    assert sorted(statuses) == sorted([status, status, "waiting"])
    assert all((folder / "checkpoints" / "last.ckpt").is_file() for folder in running)
    assert "go on with: python train.py -m sweep.resume=" in output


def two_at_once(launcher):
    return ("hydra.launcher.cpus=2",) if launcher == "ray" else ("hydra.launcher.n_jobs=2",)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_job_that_is_killed_does_not_end_the_others(launcher, tmp_path):
    skip_without(launcher)
    short = ("trainer.max_steps=1000", "trainer.val_every_steps=1000", "seed=1,2,3")
    process = start_sweep(tmp_path, launcher, *short, "hydra.sweep.dir=sweep", *two_at_once(launcher))
    victim = begun(tmp_path / "sweep", process)[0]
    os.kill(json.loads((victim / layout.LOCK).read_text())["pid"], signal.SIGKILL)
    _, errors = process.communicate(timeout=400)
    assert process.returncode == 1, errors
    outcomes = {job.folder: job.outcome for job in read_jobs(tmp_path / "sweep")}
    assert (outcomes[victim].status, outcomes[victim].reason) == ("killed", "its process was ended by SIGKILL")
    assert sorted(outcome.status for outcome in outcomes.values()) == ["finished", "finished", "killed"]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_sweep_that_is_killed_is_resumed_and_trains_nothing_unseen(launcher, tmp_path):
    """Its jobs save and end, with submitit they go on to their end; resumed, they are those of the basic one."""
    skip_without(launcher)
    steps = ("trainer.max_steps=300", "trainer.val_every_steps=150", "dropout=0.2", "seed=1,2,3")
    process = start_sweep(tmp_path, launcher, *steps, "hydra.sweep.dir=sweep", *two_at_once(launcher))
    running = begun(tmp_path / "sweep", process)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 120
    while any((folder / layout.LOCK).exists() for folder in running):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    # What submitit has started does not depend on the process that submitted it.
    status = "finished" if launcher == "submitit_local" else "terminated"
    assert {read_outcome(folder).status for folder in running} == {status}
    resumed = start_resumed(tmp_path)
    _, errors = resumed.communicate(timeout=400)
    assert resumed.returncode == 0, errors
    plain = start_sweep(tmp_path, "basic", *steps, "hydra.sweep.dir=plain")
    plain.communicate(timeout=400)
    assert plain.returncode == 0
    for number in range(3):
        mine, theirs = (weights_of(tmp_path / name / str(number)) for name in ("sweep", "plain"))
        assert all(torch.equal(mine[key], theirs[key]) for key in theirs)


def start_resumed(folder):
    return subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), "-m", "sweep.resume=sweep"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_job_that_is_preempted_is_queued_again_and_goes_on(tmp_path):
    """By the signal that Slurm sends, here to the process that submitit's local executor started for the job."""
    pytest.importorskip("submitit")
    steps = ("trainer.max_steps=300", "trainer.val_every_steps=150", "dropout=0.2", "seed=1")
    process = start_sweep(tmp_path, "submitit_local", *steps, "hydra.sweep.dir=sweep")
    (folder,) = begun(tmp_path / "sweep", process)
    job = json.loads((folder / layout.LOCK).read_text())["pid"]
    (submitted,) = re.findall(r"^PPid:\s*(\d+)$", Path(f"/proc/{job}/status").read_text(), re.MULTILINE)
    os.kill(int(submitted), signal.SIGUSR2)
    output, errors = process.communicate(timeout=500)
    assert process.returncode == 0, output + errors
    logs = "".join(file.read_text() for file in (tmp_path / "sweep" / layout.SUBMITIT).rglob("*_log.*"))
    assert "Requeued job" in logs
    assert "terminated by the system (SIGUSR1)" in logs
    plain = start_sweep(tmp_path, "basic", *steps, "hydra.sweep.dir=plain")
    plain.communicate(timeout=400)
    assert plain.returncode == 0
    mine, theirs = (weights_of(tmp_path / name / "0") for name in ("sweep", "plain"))
    assert all(torch.equal(mine[key], theirs[key]) for key in theirs)
