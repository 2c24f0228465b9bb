"""A sweep that was stopped, by Ctrl-C or by a kill, is resumed: no job is done twice, none is lost."""

import json
import os
import shutil
import signal
from dataclasses import asdict, replace

import pytest
import torch
from programs import TINY, evaluate, start_train, train, wait_for, weights_of, write_text

from lipformer.errors import UsageError
from lipformer.program.sweep_plan import expand_resume
from lipformer.runs.lock import LOCK, this_process
from lipformer.runs.outcome import Outcome, read_outcome
from lipformer.runs.sweep import WAITING, read_jobs
from lipformer.training.callbacks.stopping import InterruptedInStep
from lipformer.training.language import LanguageModule

RUN = ("trainer.max_steps=8", "trainer.val_every_steps=2", "data.batch_tokens=512", "dropout=0.2", "seed=1,2,3")
FILES = ("metrics.csv", "overrides.yaml", "config.yaml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a text, and with a sweep that nothing stopped, ``whole``."""
    folder = tmp_path_factory.mktemp("sweeps")
    write_text(folder / "text")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert sweep(patch, "whole") == 0
    return folder


def sweep(patch, name, *options):
    return train(patch, "-m", *RUN, "data.train=text", f"hydra.sweep.dir={name}", *options)


def resume(patch, name, *options):
    """Run train.py with nothing but ``-m sweep.resume``."""
    patch.setattr("programs.TINY", ())
    return train(patch, "-m", f"sweep.resume={name}", *options)


def assert_whole(folder, name):
    """Every job of the sweep has left what it leaves in a sweep that nothing stops."""
    for job in ("0", "1", "2"):
        mine, other = folder / name / job, folder / "whole" / job
        weights, expected = weights_of(mine), weights_of(other)
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[key], expected[key]) for key in weights)
        for file in FILES:
            assert (mine / file).read_text() == (other / file).read_text(), (job, file)
        assert read_outcome(mine) == read_outcome(other)
        assert not (mine / LOCK).exists()
    assert not (folder / name / LOCK).exists()


def left_by_kill(folder, name):
    """Make a job look as if its process had been killed: it is said to be running, and holds a lock."""
    Outcome("running", None).write(folder / name)
    dead = replace(this_process(), started="long ago")
    (folder / name / LOCK).write_text(json.dumps(asdict(dead)))


def copied(folder, name):
    """Copy the whole sweep, and take it back to the middle of its job 1."""
    shutil.copytree(folder / "whole", folder / name)
    shutil.rmtree(folder / name / "2")
    left_by_kill(folder / name, "1")
    return folder / name


def test_a_sweep_that_was_killed(folder, monkeypatch):
    """The process is killed in its second job, after a validation; the jobs are in three states."""
    options = ("-m", *RUN, "data.train=text", "hydra.sweep.dir=killed")
    process = start_train(*options, folder=folder)
    wait_for(folder / "killed" / "1" / "checkpoints" / "last.ckpt", process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    before = (folder / "killed" / "0" / "status.json").stat().st_mtime_ns
    monkeypatch.chdir(folder)
    assert resume(monkeypatch, "killed") == 0
    assert_whole(folder, "killed")
    assert (folder / "killed" / "0" / "status.json").stat().st_mtime_ns == before


def test_ctrl_c_saves_the_job_and_says_how_to_go_on(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    original = LanguageModule.training_step

    def step(self, batch, batch_idx):
        if self.global_step == 4 and self._seed == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(LanguageModule, "training_step", step)
        assert sweep(patch, "stopped") == 130
    told = capsys.readouterr().out
    assert "│ 0   │" in told
    assert "│ 1   │" in told
    assert f"│ {WAITING}" in told
    assert f"go on with: python train.py -m sweep.resume={folder / 'stopped'}" in told
    assert [job.outcome.status for job in read_jobs(folder / "stopped")] == ["finished", "interrupted", WAITING]
    assert resume(monkeypatch, "stopped") == 0
    assert "sweep: 3 of 3 jobs have ended (3 finished)" in capsys.readouterr().out
    assert_whole(folder, "stopped")


@pytest.mark.parametrize("how", ["in its end", "before its first checkpoint", "last is cut off", "last is missing"])
def test_a_job_killed(how, folder, monkeypatch):
    name = how.replace(" ", "_")
    job = copied(folder, name) / "1"
    last = job / "checkpoints" / "last.ckpt"
    if how == "before its first checkpoint":
        shutil.rmtree(job / "checkpoints")
        (job / "metrics.csv").write_text("epoch,step,train/nats_per_char\n0,0,9.0\n0,1,9")
    elif how == "last is cut off":
        last.write_bytes(last.read_bytes()[:1000])
    elif how == "last is missing":
        last.unlink()
    monkeypatch.chdir(folder)
    assert resume(monkeypatch, name) == 0
    assert_whole(folder, name)


def test_a_damaged_checkpoint_does_not_replace_the_one_before(folder, monkeypatch):
    """Killed again in its next saving, the job still has a whole checkpoint."""
    job = copied(folder, "twice") / "1"
    last, previous = (job / "checkpoints" / name for name in ("last.ckpt", "previous.ckpt"))
    last.write_bytes(b"")
    monkeypatch.chdir(folder)

    def stop(self, *args):
        raise InterruptedInStep  # nothing is saved

    with monkeypatch.context() as patch:
        patch.setattr(LanguageModule, "training_step", stop)
        assert resume(patch, "twice") == 130
    assert last.read_bytes() == previous.read_bytes()
    assert resume(monkeypatch, "twice") == 0
    assert_whole(folder, "twice")


def test_jobs_of_a_running_process_are_left_alone(folder, monkeypatch, capsys):
    copied(folder, "alive")
    (folder / "alive" / "1" / LOCK).write_text(json.dumps(asdict(this_process())))
    monkeypatch.chdir(folder)
    assert resume(monkeypatch, "alive") == 1
    captured = capsys.readouterr()
    assert f"alive/1 is in use by {this_process()}: choose another" in captured.err
    assert "go on with: " in captured.out
    assert read_outcome(folder / "alive" / "1").status == "running"
    (folder / "alive" / "1" / LOCK).write_text(json.dumps(asdict(replace(this_process(), host="elsewhere"))))
    assert resume(monkeypatch, "alive") == 1
    assert f"or delete {folder / 'alive' / '1' / LOCK} if that process has gone" in capsys.readouterr().err


def test_two_processes_do_not_share_a_sweep(folder, monkeypatch, capsys):
    copied(folder, "shared")
    (folder / "shared" / LOCK).write_text(json.dumps(asdict(this_process())))
    monkeypatch.chdir(folder)
    assert resume(monkeypatch, "shared") == 2
    assert f"shared is in use by {this_process()}" in capsys.readouterr().err
    assert (folder / "shared" / LOCK).is_file()


def test_failed_jobs_are_repeated_if_asked(folder, monkeypatch, capsys):
    """A failed job that had a checkpoint goes on from there, one without begins again."""
    copied(folder, "failed")
    (folder / "failed" / "1" / LOCK).unlink()
    for number in ("0", "1"):
        Outcome("failed", 1, "the disk was full").write(folder / "failed" / number)
    shutil.rmtree(folder / "failed" / "0" / "checkpoints")
    monkeypatch.chdir(folder)
    assert resume(monkeypatch, "failed") == 1
    assert capsys.readouterr().out.count("the disk was full") == 2
    assert resume(monkeypatch, "failed", "sweep.retry_failed=true") == 0
    assert_whole(folder, "failed")


def test_a_job_that_diverged_is_not_repeated(folder, monkeypatch):
    copied(folder, "diverged")
    (folder / "diverged" / "1" / LOCK).unlink()
    Outcome("diverged", 3, "the loss became nan").write(folder / "diverged" / "1")
    monkeypatch.chdir(folder)
    assert resume(monkeypatch, "diverged", "sweep.retry_failed=true") == 3
    assert [job.outcome.status for job in read_jobs(folder / "diverged")] == ["finished", "diverged", "finished"]


def test_the_same_overrides_may_be_repeated_and_no_others(folder, monkeypatch, capsys):
    copied(folder, "same")
    monkeypatch.chdir(folder)
    assert sweep(monkeypatch, "same", "sweep.resume=same", "lr=0.1") == 2
    assert "error: lr=0.1: not what this sweep was started with" in capsys.readouterr().err
    assert sweep(monkeypatch, "same", "sweep.resume=same", *TINY) == 0
    assert_whole(folder, "same")


def test_from_another_directory(folder, monkeypatch, tmp_path, capsys):
    copied(folder, "moved")
    monkeypatch.chdir(tmp_path)
    try:
        assert resume(monkeypatch, str(folder / "moved")) == 0
    finally:
        os.chdir(tmp_path)
    assert f"working in {folder}, where the sweep was started" in capsys.readouterr().out
    assert_whole(folder, "moved")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sweep.resume=whole"], "sweep.resume=whole: add -m; to continue one run, type resume=<run folder>"),
        (["-m", "sweep.resume=none"], "sweep.resume=none: no sweep was started there (it holds no sweep.json)"),
        (["-m", "sweep.resume=whole/0"], "sweep.resume=whole/0: no sweep was started there"),
        (["-m", "sweep.resume=whole,none"], "sweep.resume=whole,none: give one folder of a sweep"),
        (["-m", "sweep.resume="], "sweep.resume=: name the folder of a sweep"),
        (["-m", "sweep.resume=007"], "sweep.resume=007: no sweep was started there"),
        (["-m", "sweep.resume=whole", "hydra.sweep.dir=other"], "hydra.sweep.dir=other: the sweep goes on in its own"),
        (["-m", "sweep.resume=whole", "lr=1"], "lr=1: not what this sweep was started with (data=text_files "),
        (["-m", "sweep.resume=whole", "data=text_files"], "without attention=dot_product "),
    ],
)
def test_what_cannot_be_resumed(arguments, message, folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(UsageError) as error:
        expand_resume("train", arguments)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_sweep_of_the_other_program(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert evaluate(monkeypatch, "-m", "sweep.resume=whole") == 2
    assert "that sweep is one of train.py: type python train.py -m" in capsys.readouterr().err


def test_evaluations_are_resumed_too(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    options = ("-m", "checkpoint=whole/0,whole/1", "data.valid=text", "data.test=text", "hydra.sweep.dir=scores")
    assert evaluate(monkeypatch, *options) == 0
    first = (folder / "scores" / "0" / "metrics.json").stat().st_mtime_ns
    left_by_kill(folder / "scores", "1")
    assert evaluate(monkeypatch, "-m", "sweep.resume=scores") == 0
    assert (folder / "scores" / "0" / "metrics.json").stat().st_mtime_ns == first
    assert "sweep: 2 of 2 jobs have ended (2 finished)" in capsys.readouterr().out


def test_a_sweep_that_cannot_be_composed_leaves_no_folder(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert sweep(monkeypatch, "nothing", "attention=l2,nope") == 2
    assert "attention=nope: no such choice" in capsys.readouterr().err
    assert not (folder / "nothing").exists()


def test_a_report_that_fails_at_the_end_does_not_change_the_exit_code(folder, monkeypatch, capsys):
    """Hydra turns an exception in a callback into a warning."""
    copied(folder, "unwritable")
    (folder / "unwritable" / "1" / LOCK).unlink()
    Outcome("failed", 1, "the disk was full").write(folder / "unwritable" / "1")

    def fail(*args):
        raise ValueError("no page today")

    monkeypatch.setattr("lipformer.program.sweep_report._gather_claims", fail)
    monkeypatch.chdir(folder)
    assert resume(monkeypatch, "unwritable") == 1
    assert "error: ValueError: no page today" in capsys.readouterr().err
    assert not (folder / "unwritable" / LOCK).exists()
