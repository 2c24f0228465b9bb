"""Runs that a signal ends, and runs whose process is gone."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from programs import ROOT, TINY, evaluate, start_train, train, wait_for, write_text

from lipformer.assembly.checkpoint import read_checkpoint
from lipformer.report import write_report
from lipformer.runs.lock import LOCK, this_process
from lipformer.runs.outcome import read_outcome
from lipformer.runs.record import read_record
from lipformer.system.signals import ENDING, SignalWatch, Terminated, leave_signals_to_parent
from lipformer.training.language import LanguageModule

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="signals of Unix")

STEPS = 11
RUN = ("dropout=0.2", "trainer.val_every_steps=3", "data.batch_tokens=512", "schedule.total_steps=500")
CODES = {"SIGHUP": 129, "SIGUSR1": 138, "SIGTERM": 143}


@pytest.fixture(autouse=True)
def default_handlers():
    """Whatever these tests are started by: a process that they start inherits that a signal is ignored."""
    before = {name: signal.signal(getattr(signal, name), signal.SIG_DFL) for name in CODES}
    yield
    for name, handler in before.items():
        signal.signal(getattr(signal, name), handler)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("signals") / "text.txt")


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    """Weights of a run that no signal ended."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        options = (f"data.train={text}", f"trainer.max_steps={STEPS}", f"hydra.run.dir={folder}")
        assert train(patch, *RUN, *options) == 0
    return weights(folder)


def weights(folder):
    return read_checkpoint(folder / "checkpoints" / "last.ckpt")["state_dict"]


def assert_equal(one, two):
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def in_step(step, action, monkeypatch, method="training_step"):
    """Do `action` in the middle of the training step, or of the validation, that follows `step`."""
    original = getattr(LanguageModule, method)

    def with_action(self, batch, batch_idx):
        result = original(self, batch, batch_idx)
        if self.global_step == step:
            action()
        return result

    monkeypatch.setattr(LanguageModule, method, with_action)


def badge(folder):
    page = write_report([read_record(folder)], folder / "page.html").read_text()
    return page[page.index('<span class="badge ') :].split(">")[1].split("<")[0]


# --- within a training -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "method", "step"),
    [
        ("SIGHUP", "training_step", 4),
        ("SIGUSR1", "training_step", 6),
        ("SIGTERM", "training_step", 4),
        ("SIGHUP", "validation_step", 6),
    ],
)
def test_a_signal_ends_the_run_at_the_end_of_the_step(name, method, step, text, whole, tmp_path, monkeypatch, capsys):
    first, number = tmp_path / "first", getattr(signal, name)
    with monkeypatch.context() as patch:
        in_step(step, lambda: signal.raise_signal(number), patch, method)
        options = (f"data.train={text}", f"trainer.max_steps={STEPS}", "trainer.report=true", f"hydra.run.dir={first}")
        assert train(patch, *RUN, *options) == CODES[name]
    assert signal.getsignal(number) is signal.SIG_DFL
    out, err = capsys.readouterr()
    assert err == f"error: terminated by the system ({name})\n"
    assert out.endswith(f"continue it with: python train.py resume={first}\n")
    outcome = read_outcome(first)
    assert (outcome.status, outcome.exit_code) == ("terminated", CODES[name])
    assert outcome.reason == f"terminated by the system ({name})"
    assert outcome.best is not None
    last = read_checkpoint(first / "checkpoints" / "last.ckpt")
    assert last["global_step"] == (step + 1 if method == "training_step" else step)
    assert (first / "report.html").is_file()
    assert badge(first) == "terminated"
    assert not (first / LOCK).exists()
    assert train(monkeypatch, f"resume={first}", f"hydra.run.dir={tmp_path / 'second'}") == 0
    assert_equal(weights(tmp_path / "second"), whole)


def test_signals_that_come_twice_change_nothing(text, whole, tmp_path, monkeypatch):
    first = tmp_path / "first"

    def send():
        for name in ("SIGHUP", "SIGHUP", "SIGTERM"):
            signal.raise_signal(getattr(signal, name))

    with monkeypatch.context() as patch:
        in_step(4, send, patch)
        patch.setattr("lipformer.figures.draw_run", lambda *arguments: send())
        options = (f"data.train={text}", f"trainer.max_steps={STEPS}", "trainer.report=true", f"hydra.run.dir={first}")
        assert train(patch, *RUN, *options) == 129
    assert read_checkpoint(first / "checkpoints" / "last.ckpt")["global_step"] == 5
    assert train(monkeypatch, f"resume={first}", f"hydra.run.dir={tmp_path / 'second'}") == 0
    assert_equal(weights(tmp_path / "second"), whole)


def test_a_second_ctrl_c_stops_at_once_and_saves_no_half_step(text, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    in_step(4, lambda: [signal.raise_signal(signal.SIGINT) for _ in range(2)], monkeypatch)
    options = (f"data.train={text}", f"trainer.max_steps={STEPS}", f"hydra.run.dir={folder}")
    assert train(monkeypatch, *RUN, *options) == 130
    assert read_outcome(folder).status == "interrupted"
    assert read_checkpoint(folder / "checkpoints" / "last.ckpt")["global_step"] == 3
    assert "last.ckpt stays as it was: the training was stopped within a step" in (folder / "train.log").read_text()


def test_a_signal_in_the_last_validation_is_not_swallowed(text, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    in_step(STEPS, lambda: signal.raise_signal(signal.SIGHUP), monkeypatch, "validation_step")
    options = (f"data.train={text}", f"trainer.max_steps={STEPS}", f"hydra.run.dir={folder}")
    assert train(monkeypatch, *RUN, *options) == 129
    assert read_checkpoint(folder / "checkpoints" / "last.ckpt")["global_step"] == STEPS


@pytest.mark.parametrize("what", ["lipformer.figures.draw_run", "lipformer.report.write_report"])
@pytest.mark.parametrize(("nats", "status", "code"), [(20, "terminated", 138), (0.01, "diverged", 3)])
def test_a_signal_in_the_pictures_hides_no_divergence(what, nats, status, code, text, tmp_path, monkeypatch):
    monkeypatch.setattr(what, lambda *arguments: signal.raise_signal(signal.SIGUSR1))
    folder = tmp_path / "run"
    guard = (f"callbacks.divergence_guard.loss_above={nats}", "callbacks.divergence_guard.patience=1")
    options = (f"data.train={text}", "trainer.report=true", f"hydra.run.dir={folder}")
    assert train(monkeypatch, *guard, *options) == code
    assert read_outcome(folder).status == status
    assert not (folder / LOCK).exists()


def test_handlers_that_are_not_the_default_ones_stay(text, tmp_path, monkeypatch):
    """As submitit's: it answers SIGTERM by going on."""
    seen = []
    mine = {name: (lambda number, frame: seen.append(number)) for name in ("SIGTERM", "SIGUSR1")}
    for name, handler in mine.items():
        signal.signal(getattr(signal, name), handler)
    in_step(1, lambda: [signal.raise_signal(getattr(signal, name)) for name in mine], monkeypatch)
    assert train(monkeypatch, f"data.train={text}", f"hydra.run.dir={tmp_path / 'run'}") == 0
    assert seen == [signal.SIGTERM, signal.SIGUSR1]
    assert all(signal.getsignal(getattr(signal, name)) is handler for name, handler in mine.items())


def test_a_signal_calls_off_the_rest_of_a_sweep(text, tmp_path, monkeypatch):
    in_step(1, lambda: signal.raise_signal(signal.SIGUSR1), monkeypatch)
    sweep = ("-m", "seed=0,1", f"hydra.sweep.dir={tmp_path / 'sweep'}", f"data.train={text}")
    assert train(monkeypatch, *sweep) == 138
    assert read_outcome(tmp_path / "sweep" / "0").status == "terminated"
    assert not (tmp_path / "sweep" / "1").exists()


@pytest.mark.parametrize("name", CODES)
def test_a_signal_ends_an_evaluation_too(name, tiny_run, tmp_path, monkeypatch):
    monkeypatch.setattr("lipformer.studies.score.measure", lambda *a, **k: signal.raise_signal(number))
    number, folder = getattr(signal, name), tmp_path / "evaluation"
    assert evaluate(monkeypatch, f"checkpoint={tiny_run}", f"hydra.run.dir={folder}") == CODES[name]
    outcome = read_outcome(folder)
    assert (outcome.status, outcome.reason) == ("terminated", f"terminated by the system ({name})")


class TestSignalWatch:
    def test_at_once_and_only_once(self):
        with SignalWatch() as watch:
            with pytest.raises(Terminated) as raised:
                signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
            watch.check()
        assert (raised.value.code, str(raised.value)) == (129, "terminated by the system (SIGHUP)")
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL

    def test_one_that_waits_is_raised_when_the_wait_ends(self):
        reached = []

        def wait(watch):
            with watch.deferred():
                signal.raise_signal(signal.SIGUSR1)
                reached.append(watch.received)

        with SignalWatch() as watch, pytest.raises(Terminated):
            wait(watch)
        assert reached == [signal.SIGUSR1]

    def test_one_that_was_swallowed_is_raised_before_the_training(self):
        with SignalWatch() as watch:
            with contextlib.suppress(Terminated):  # as some imports and destructors do
                signal.raise_signal(signal.SIGHUP)
            with pytest.raises(Terminated, match="SIGHUP"), watch.deferred():
                pytest.fail("the training has begun")

    def test_an_ignored_signal_stays_ignored(self):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with SignalWatch():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN

    def test_a_worker_outlives_the_signals_of_its_group(self):
        """Just after it was forked, by the handlers it inherited; later because it ignores them."""
        with SignalWatch():
            child = os.fork()
            if child == 0:
                with contextlib.suppress(BaseException):
                    for number in (*ENDING, *ENDING):
                        os.kill(os.getpid(), number)
                    leave_signals_to_parent(0)
                    for number in (*ENDING, signal.SIGINT):
                        os.kill(os.getpid(), number)
                    os._exit(7)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


# --- in a process of its own -------------------------------------------------------------------------------------


def start(text, tmp_path, *options):
    """Start a long run, and wait for its first checkpoint."""
    folder = tmp_path / "first"
    limits = (f"data.train={text}", "trainer.max_steps=100000", f"hydra.run.dir={folder}")
    process = start_train(*RUN, *limits, *options, folder=tmp_path)
    wait_for(folder / "checkpoints" / "last.ckpt", process)
    return process, folder


def assert_continues_as_if_never_stopped(text, folder, tmp_path, monkeypatch):
    step = read_checkpoint(folder / "checkpoints" / "last.ckpt")["global_step"] + 2
    limit = f"trainer.max_steps={step}"
    assert train(monkeypatch, f"resume={folder}", limit, f"hydra.run.dir={tmp_path / 'second'}") == 0
    assert train(monkeypatch, *RUN, f"data.train={text}", limit, f"hydra.run.dir={tmp_path / 'whole'}") == 0
    assert_equal(weights(tmp_path / "second"), weights(tmp_path / "whole"))


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in CODES])
def test_signal_to_a_process(name, text, tmp_path, monkeypatch):
    process, folder = start(text, tmp_path)
    process.send_signal(getattr(signal, name))
    _, errors = process.communicate(timeout=120)
    assert process.returncode == CODES[name], errors
    assert errors.splitlines()[-1] == f"error: terminated by the system ({name})"
    assert read_outcome(folder).status == "terminated"
    assert_continues_as_if_never_stopped(text, folder, tmp_path, monkeypatch)


def test_signal_to_a_group_with_workers(text, tmp_path):
    """As a terminal that is closed sends it: twice, and to the processes that make the batches too."""
    process, folder = start(text, tmp_path, "data.num_workers=2")
    for _ in range(2):
        os.killpg(process.pid, signal.SIGHUP)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == CODES["SIGHUP"], errors
    assert errors == "error: terminated by the system (SIGHUP)\n"
    assert read_outcome(folder).status == "terminated"


def test_a_run_under_nohup_goes_on(text, tmp_path):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does, before it starts the program
    process, folder = start(text, tmp_path)
    process.send_signal(signal.SIGHUP)
    last = folder / "checkpoints" / "last.ckpt"
    reached = read_checkpoint(last)["global_step"]
    deadline = time.monotonic() + 120
    while read_checkpoint(last)["global_step"] < reached + 6:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 143, errors


def test_a_killed_run_is_shown_as_killed_and_continues(text, tmp_path, monkeypatch):
    process, folder = start(text, tmp_path)
    running = read_outcome(folder)
    assert (running.status, running.exit_code) == ("running", None)
    assert running.reason == f"process {process.pid} on {this_process().host}"
    process.kill()
    process.communicate(timeout=60)
    assert json.loads((folder / "status.json").read_text())["status"] == "running"
    outcome = read_outcome(folder)
    assert (outcome.status, outcome.exit_code) == ("killed", None)
    assert outcome.reason == f"process {process.pid} on {this_process().host} is gone and left no other status"
    assert read_record(folder).status == "killed"
    assert badge(folder) == "killed"
    assert_continues_as_if_never_stopped(text, folder, tmp_path, monkeypatch)


@pytest.mark.slow
def test_a_signal_to_one_of_two_processes_stops_both_after_the_same_step(text, tmp_path):
    process, folder = start(text, tmp_path, "trainer.devices=2", "trainer.report=true")
    process.send_signal(signal.SIGUSR1)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 138, errors
    assert read_outcome(folder).status == "terminated"
    assert (folder / "report.html").is_file()
    step = read_checkpoint(folder / "checkpoints" / "last.ckpt")["global_step"]
    more = (f"resume={folder}", f"trainer.max_steps={step + 2}", f"hydra.run.dir={tmp_path / 'second'}")
    process = start_train(*more, folder=tmp_path)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors


@pytest.mark.parametrize("report", ["true", "false"])
def test_a_reader_that_leaves_does_not_change_the_exit_code(report, text, tmp_path):
    options = [f"data.train={text}", "hydra.run.dir=run", f"trainer.report={report}"]
    command = " ".join([sys.executable, str(ROOT / "train.py"), *TINY, *options])
    line = f"set -o pipefail; {command} | head -1"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    assert read_outcome(tmp_path / "run").status == "finished"
