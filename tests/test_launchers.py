"""Launchers that run many jobs of a sweep at once: what becomes of the jobs, and of a sweep that is asked to end."""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace

import pytest
from omegaconf import OmegaConf
from programs import ROOT, start_sweep, start_train, wait_for

from lipformer.program import job_process
from lipformer.program.hydra_plugins import make_known
from lipformer.program.job_process import Job, JobProcess, SubmittedJob, run_job
from lipformer.program.launching import StopRequests
from lipformer.runs import layout, lock
from lipformer.runs.lock import take_lock, this_process
from lipformer.runs.outcome import Outcome, read_outcome
from lipformer.runs.sweep import read_jobs
from lipformer.system.openmp import CORES

make_known()
from hydra_plugins.lipformer_joblib import JoblibLauncher  # noqa: E402
from hydra_plugins.lipformer_submitit import SubmititLocalLauncher, SubmititSlurmLauncher  # noqa: E402

STUB = """
import os, pickle, signal, sys, threading, time
from lipformer.runs.lock import take_lock
from lipformer.runs.outcome import Outcome
size = int.from_bytes(os.read(0, 8))
job = pickle.loads(os.read(0, size))
def end(number, frame):
    Outcome("terminated", 128 + number, signal.Signals(number).name).write(job.folder)
    sys.exit(128 + number)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, end)
print("stub", os.environ.get("TOLD", "-"), flush=True)
match pickle.loads(job.config):
    case "finish":
        Outcome(best=2.0).write(job.folder)
    case "lock":
        take_lock(job.folder)
        Outcome("running", None).write(job.folder)
        os.kill(os.getpid(), signal.SIGKILL)
    case "die":
        os.kill(os.getpid(), signal.SIGKILL)
    case "wait":
        (job.folder / "ready").touch()
        os.read(0, 1)  # returns when the other process is gone
        end(signal.SIGHUP, None)
"""


@pytest.fixture
def stub(monkeypatch, tmp_path):
    """Return a function that makes a job of a program that does as it is told, instead of training."""
    script = tmp_path / "stub.py"
    script.write_text(STUB)
    monkeypatch.setattr(job_process, "COMMAND", (sys.executable, str(script)))

    def job(what, number=0, **fields):
        folder = tmp_path / "sweep" / str(number)
        folder.mkdir(parents=True)
        (folder / layout.OVERRIDES).write_text("[]")
        return Job(layout.TRAIN, number, folder, tmp_path / "sweep", pickle.dumps(what), **fields)

    return job


def in_thread(job):
    """Run a job in a thread; return the thread and a list that gets the outcome."""
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(run_job(job)), daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not (job.folder / "ready").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return thread, outcomes


def test_a_job_ends_as_its_folder_tells(stub, capfd):
    job = stub("finish", number=7, environment={"TOLD": "something"})
    assert run_job(job) == Outcome(best=2.0)
    assert capfd.readouterr().out == "[7] stub something\n"


def test_a_job_that_was_killed_is_recorded_so(stub):
    job = stub("die")
    outcome = run_job(job)
    assert outcome == read_outcome(job.folder) == Outcome("killed", None, "its process was ended by SIGKILL")


@pytest.mark.parametrize("what", ["refused", "die"])
@pytest.mark.parametrize("other", [{}, {"host": "elsewhere"}, None])
def test_a_job_that_runs_elsewhere_is_left_alone(stub, what, other):
    """Its folder is locked by another process, or the lock is broken: the one started here writes nothing there."""
    job = stub(what)
    Outcome("running", None).write(job.folder)
    files = {layout.LOCK: "" if other is None else json.dumps(asdict(replace(this_process(), **other)))}
    (job.folder / layout.LOCK).write_text(files[layout.LOCK])
    files[layout.STATUS] = (job.folder / layout.STATUS).read_text()
    assert run_job(job).status == read_outcome(job.folder).status == "running"
    assert {name: (job.folder / name).read_text() for name in files} == files


def test_a_job_whose_lock_names_a_process_that_has_gone_was_killed(stub):
    job = stub("die")
    Outcome("running", None).write(job.folder)
    (job.folder / layout.LOCK).write_text(json.dumps(asdict(replace(this_process(), started="long ago"))))
    assert run_job(job) == Outcome("killed", None, "its process was ended by SIGKILL")
    assert json.loads((job.folder / layout.STATUS).read_text())["status"] == "killed"
    assert not (job.folder / layout.LOCK).exists()


def test_a_job_whose_lock_was_taken_before_its_status_was_written_is_left_alone(stub):
    job = stub("die")
    take_lock(job.folder)
    assert run_job(job) == Outcome("running", None, str(this_process()))
    assert not (job.folder / layout.STATUS).exists()


def test_a_child_that_is_known_to_have_ended_is_recorded_where_no_other_can_be_told_from_it(stub, monkeypatch):
    """As on a system that does not tell when a process started."""
    monkeypatch.setattr(lock.Process, "is_alive", lambda self: None)
    job = stub("lock")
    assert run_job(job).status == read_outcome(job.folder).status == "killed"
    assert not (job.folder / layout.LOCK).exists()


@pytest.mark.parametrize(("asked", "got"), [("SIGINT", "SIGINT"), ("SIGTERM", "SIGTERM"), ("SIGHUP", "killed")])
def test_a_running_job_is_asked_to_end_and_no_other_begins(asked, got, stub):
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the job inherits that it is ignored, as under nohup
    job = stub("wait")
    thread, outcomes = in_thread(job)
    (job.sweep / layout.SWEEP_STOP).write_text(f"{asked}\n")
    thread.join(60)
    signal.signal(signal.SIGHUP, before)
    assert got in (outcomes[0].status, outcomes[0].reason)
    assert run_job(stub("finish", number=1)).status == "waiting"


def test_a_job_that_is_deaf_gets_another_signal(stub):
    job = stub("wait", deaf=True)
    thread, outcomes = in_thread(job)
    (job.sweep / layout.SWEEP_STOP).write_text("SIGTERM\n")
    thread.join(60)
    assert outcomes[0].reason == "SIGUSR1"


def test_a_job_does_not_outlive_the_process_that_follows_it(stub):
    job = stub("wait")
    code = (
        "import pickle, sys; from lipformer.program import job_process; "
        f"job_process.COMMAND = {job_process.COMMAND!r}; "
        "job_process.run_job(pickle.loads(sys.stdin.buffer.read()))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, cwd=ROOT)
    process.stdin.write(pickle.dumps(job))
    process.stdin.close()
    wait_for(job.folder / "ready", process)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while read_outcome(job.folder) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert read_outcome(job.folder).reason == "SIGHUP"


def test_what_submitit_calls_before_it_queues_a_job_again(stub):
    pytest.importorskip("submitit")
    job = stub("wait", deaf=True)
    submitted = SubmittedJob()
    thread, _ = in_thread(job)
    again = submitted.checkpoint(job)
    thread.join(60)
    assert read_outcome(job.folder).reason == "SIGUSR1"
    assert (again.function, again.args) == (submitted, (job,))
    assert JobProcess.current is None


def test_requests_to_end(tmp_path):
    handler = signal.getsignal(signal.SIGINT)
    file = tmp_path / layout.SWEEP_STOP
    file.write_text("of an earlier call")
    with StopRequests(tmp_path) as requests:
        assert (file.exists(), requests.exit_code) == (False, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT, signal.SIGINT):
            os.kill(os.getpid(), number)
        assert file.read_text().split() == ["SIGINT", "SIGINT", "SIGKILL"]
        assert requests.exit_code == 130
    assert not file.exists()
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_handler_of_ones_own_is_kept(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequests(tmp_path) as requests:
            os.kill(os.getpid(), signal.SIGHUP)
            assert requests.exit_code == 0
            os.kill(os.getpid(), signal.SIGTERM)
            assert requests.exit_code == 143
    finally:
        signal.signal(signal.SIGHUP, before)


def launched(launcher, monkeypatch, tmp_path, count):
    """Return the environments of so many jobs, as they are run."""
    seen = []
    make = launcher.__module__
    monkeypatch.setattr(f"{make}.run_job", lambda job: seen.append(job.environment) or Outcome())
    jobs = [Job(layout.TRAIN, number, tmp_path, tmp_path, b"") for number in range(count)]
    assert sorted(number for number, _ in launcher.run(jobs)) == list(range(count))
    return seen


@pytest.mark.parametrize(
    ("n_jobs", "count", "threads"), [(2, 5, "4"), (3, 5, "2"), (16, 16, "1"), (16, 2, "4"), (-1, 20, "1")]
)
def test_joblib_divides_the_cores(n_jobs, count, threads, monkeypatch, tmp_path):
    pytest.importorskip("joblib")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("joblib.cpu_count", lambda: 8)
    launcher = JoblibLauncher(n_jobs=n_jobs, gpus=None)
    expected = {"OMP_NUM_THREADS": threads, CORES: threads}
    assert launched(launcher, monkeypatch, tmp_path, count) == [expected] * count


def test_joblib_gives_each_job_one_gpu(monkeypatch, tmp_path):
    pytest.importorskip("joblib")
    launcher = JoblibLauncher(n_jobs=4, gpus=OmegaConf.create([0, 3]))
    seen = launched(launcher, monkeypatch, tmp_path, 8)
    assert {environment["CUDA_VISIBLE_DEVICES"] for environment in seen} == {"0", "3"}


def test_local_jobs_of_submitit_divide_the_cores(monkeypatch):
    monkeypatch.setattr("hydra_plugins.lipformer_submitit.core_count", lambda: 8)
    assert [SubmititLocalLauncher(n_jobs=n_jobs).cores(jobs=6) for n_jobs in (-1, 2, 3, 100)] == [1, 4, 2, 1]


def test_what_sbatch_is_called_with():
    """submitit writes the file; Slurm itself is not here."""
    pytest.importorskip("submitit")
    from submitit.slurm.slurm import _make_sbatch_string

    options = SubmititSlurmLauncher.options.defaults()
    launcher = SubmititSlurmLauncher(**{**options, "partition": "gpu", "gpus_per_node": 1, "mem_gb": 1.5})
    launcher.config = OmegaConf.create({"hydra": {"job": {"name": "train"}}})
    lines = _make_sbatch_string(command="run", folder="there", map_count=3, **launcher.parameters()).splitlines()
    for option in (
        "array=0-2%3", "cpus-per-task=2", "gpus-per-node=1", "job-name=train", "mem=1536MB", "partition=gpu",
        "time=1440", "signal=USR2@120",
    ):  # fmt: skip
        assert f"#SBATCH --{option}" in lines
    assert not any("account" in line for line in lines)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("hydra.launcher.n_jobs=0",), "hydra.launcher.n_jobs=0: it must be at least 1, or -1 for one for each core"),
        (
            ("hydra.launcher.gpus=[-1]",),
            "hydra.launcher.gpus=[-1]: it must be a list of numbers of at least 0, or null",
        ),
        ((), "hydra/launcher=joblib: joblib is not installed; pip install 'lipformer[joblib]'"),
    ],
)
def test_what_a_user_can_get_wrong(options, line, tmp_path):
    (tmp_path / "joblib.py").write_text("raise ModuleNotFoundError")
    path = {} if options else {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    process = start_sweep(tmp_path, "joblib", "seed=1,2", *options, **path)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (2, f"error: {line}\n")


def test_an_unknown_option_is_refused(tmp_path):
    process = start_sweep(tmp_path, "joblib", "seed=1,2", "hydra.launcher.jobs=2")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "unknown key hydra.launcher.jobs" in errors


def test_help_lists_the_launchers_and_their_options(tmp_path):
    process = start_train("--help", "hydra/launcher=submitit_slurm", folder=tmp_path)
    output, _ = process.communicate(timeout=120)
    assert "\nhydra/launcher: basic, joblib, ray, submitit_local, submitit_slurm\n" in output
    assert "\n    timeout_min: 1440 " in output
    assert "# partition of the cluster; null: its default\n" in output


def test_a_process_that_composed_before_knows_the_launchers_too():
    code = (
        "from hydra import compose, initialize_config_dir; from lipformer.config import conf_dir, register; register();"
        "initialize_config_dir(str(conf_dir()), version_base='1.3'); compose('train');"
        "from lipformer.program.hydra_plugins import make_known; make_known();"
        "compose('train', overrides=['hydra/launcher=joblib'])"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=120)


def test_joblib_trains(tmp_path):
    """The quick twin of `test_every_launcher_ends_as_the_basic_one` in test_launchers_whole.py."""
    pytest.importorskip("joblib")
    process = start_sweep(
        tmp_path, "joblib", "hydra.sweep.dir=sweep", "seed=1,2", "lr=1e-3,nan", "hydra.launcher.n_jobs=2"
    )
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 1, errors
    jobs = read_jobs(tmp_path / "sweep")
    assert [job.outcome.status for job in jobs] == ["finished", "failed", "finished", "failed"]
    assert errors.count("error: lr=nan") == 2
    for number in (0, 2):
        assert f"[{number}] test it with" in output
    assert not (tmp_path / "sweep" / layout.SWEEP_STOP).exists()
