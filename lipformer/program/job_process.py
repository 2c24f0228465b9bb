"""One job of a sweep in a process of its own, whichever process of whichever machine starts that.

Launchers differ only in where they call `run_job`. A process for each job is what keeps jobs apart: seeds, compiled
code, threads and handlers of signals are its own, and if the system kills it, the others go on.
"""

import contextlib
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar

from lipformer.errors import WriteError, one_line
from lipformer.runs import layout
from lipformer.runs.lock import Process, identify, lock_holder, release_lock
from lipformer.runs.outcome import FINAL, Outcome, read_outcome
from lipformer.runs.sweep import WAITING
from lipformer.system.text import print_error

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-P", "-m", "lipformer.program.one_job")  # -P: nothing is imported from where it runs
EVERY = 0.2
"""Seconds between two looks at whether the job has ended, and whether it is asked to."""
PATIENCE = 5.0
"""Seconds to wait for the last output of a process that has ended: a process that it started may hold the pipe."""
SIZE = 8
"""Bytes of the length of what a process is told of its job."""
PACKAGE = Path(__file__).parents[2]
"""The folder that `lipformer` is imported from."""


@dataclass(frozen=True)
class Job:
    """A job of a sweep, with all that a process on another machine needs; it can be pickled.

    Attributes:
        program: `layout.TRAIN` or `layout.EVALUATE`.
        number: its number in the sweep.
        folder: its run folder.
        sweep: the folder of the sweep.
        config: its configuration, as Hydra composed it, with the node ``hydra``, pickled.
        full_error: whether the user asked for tracebacks.
        environment: environment variables of its process.
        deaf: whether it ignores TERM and USR2, and ends by USR1, as jobs of submitit do.
    """

    program: str
    number: int
    folder: Path
    sweep: Path
    config: bytes
    full_error: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    deaf: bool = False

    def asked(self) -> list[str]:
        """Return the names of the signals by which the sweep was asked to end, the first one first."""
        try:
            return (self.sweep / layout.SWEEP_STOP).read_text().split()
        except OSError:  # it was not
            return []


def run_job(job: Job) -> Outcome:
    """Run a job in a process of its own to its end, and pass on its output line by line.

    If the sweep is asked to end, so is the job, which then saves; if it has not begun, it does not begin. If this
    process ends, by whatever cause, the job saves and ends too.

    Returns:
        How the job ended, as its folder tells; that it was killed or could not be started, if that tells nothing.
    """
    if job.asked():
        return Outcome(WAITING, None)
    try:
        process = JobProcess(job)
    except OSError as error:
        return settle(job, one_line(error))
    return settle(job, process.follow(), child=process.identity)


class JobProcess:
    """The process of a job.

    Args:
        job: the job.

    Attributes:
        current: the one that this process follows; submitit runs one job in each of its processes.
        identity: what the lock of its folder names.

    Raises:
        OSError: the system cannot start it.
    """

    current: ClassVar["JobProcess | None"] = None

    def __init__(self, job: Job):
        self._job = job
        path = [str(PACKAGE), os.environ.get("PYTHONPATH", "")]
        self._popen = subprocess.Popen(
            COMMAND,
            env={**os.environ, **job.environment, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the terminal goes to the process that launches the sweep, not to all
        )
        self.identity = identify(self._popen.pid)
        self._output = [self._pass_on(self._popen.stdout, sys.stdout), self._pass_on(self._popen.stderr, sys.stderr)]
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            told = pickle.dumps(job)
            self._popen.stdin.write(len(told).to_bytes(SIZE) + told)
            self._popen.stdin.flush()  # it stays open: the job ends when this process does
        JobProcess.current = self

    def follow(self) -> str:
        """Wait until the process has ended, and send it the signals that the sweep is asked to end by.

        Returns:
            How the process ended, in words; empty if it ended by itself.
        """
        sent = 0
        try:
            while self._popen.poll() is None:
                asked = self._job.asked()
                for name in asked[sent:]:
                    self.send(name)
                sent = len(asked)
                time.sleep(EVERY)
        except BaseException as error:  # such as Ctrl-C in a worker of Ray
            self.end("SIGINT" if isinstance(error, KeyboardInterrupt) else "SIGTERM")
            raise
        finally:
            self._close()
        code = self._popen.returncode
        return ended_by(signal.Signals(-code)) if code < 0 else ""

    def send(self, name: str) -> None:
        """Send the process a signal; one that is deaf to TERM gets USR1 instead."""
        number = signal.SIGUSR1 if self._job.deaf and name == "SIGTERM" else signal.Signals[name]
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._popen.pid, number)

    def end(self, name: str) -> None:
        """Send the process a signal, unless it has ended, and wait until it has; also from a handler of a signal."""
        if self._popen.returncode is not None:
            return
        self.send(name)
        # Not `Popen.wait`: the handler may have interrupted `Popen.poll`, which holds the same lock.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)

    def _pass_on(self, stream: IO[bytes] | None, to: Any) -> threading.Thread:
        """Copy the lines of a stream, each with the number of the job, until it ends."""
        assert stream is not None

        def copy() -> None:
            with contextlib.suppress(ValueError, OSError):  # the output of this process is closed
                for line in stream:
                    to.write(f"[{self._job.number}] {line.decode(errors='replace')}")
                    to.flush()

        thread = threading.Thread(target=copy, name=f"output-of-job-{self._job.number}", daemon=True)
        thread.start()
        return thread

    def _close(self) -> None:
        for thread in self._output:
            thread.join(PATIENCE)
        assert self._popen.stdin is not None
        with contextlib.suppress(OSError):
            self._popen.stdin.close()
        JobProcess.current = None


def ended_by(number: signal.Signals) -> str:
    """Return in words that a signal ended a process."""
    return f"its process was ended by {number.name}"


def settle(job: Job, cause: str, output: Path | None = None, child: Process | None = None) -> Outcome:
    """Return how a job ended whose process has ended, and write it into its folder if it could not do so itself.

    A folder that another process has locked is left as it is, unless that process is known to have gone: the job may
    run there, as one of a sweep that was killed and is resumed, and its process here was refused.

    Args:
        job: the job.
        cause: what ended the process, if not the job itself; empty if nothing else is known.
        output: the file that the job's output goes to, if it is not that of this process.
        child: the process, if it was one of this machine.
    """
    holder = lock_holder(job.folder)  # before the status, which its process writes before it releases the lock
    gone = _has_gone(job.folder, holder, child)
    outcome = read_outcome(job.folder)
    if outcome is not None and outcome.status != "running" and not (cause and outcome.status not in FINAL):
        return outcome
    if not gone:
        return outcome or Outcome("running", None, str(holder or ""))
    outcome = Outcome("killed", None, cause or "its process ended and left no other status")
    if cause == ended_by(signal.SIGINT):  # Python ends so by a Ctrl-C that comes while it saves
        outcome.end_by(KeyboardInterrupt())
    if (job.folder / layout.OVERRIDES).is_file():  # else it is not known to be the job's folder
        try:
            outcome.write(job.folder)
            release_lock(job.folder, holder)
        except WriteError as error:
            log.warning("%s", error)
    elif not job.asked():
        where = f" (see {output})" if output else ""
        print_error(f"job {job.number}: {outcome.reason}{where}")
    return outcome


def _has_gone(folder: Path, holder: Process | None, child: Process | None) -> bool:
    """Return whether no process but the one that has ended can be at work in a folder, as its lock tells."""
    if holder is None:  # no lock, or a broken one
        return not (folder / layout.LOCK).exists()
    return holder == child or holder.is_alive() is False


class SubmittedJob:
    """`run_job` for submitit, which calls `checkpoint` when its cluster takes the machine away or the time is over."""

    def __call__(self, job: Job) -> Outcome:
        """Run the job."""
        return run_job(job)

    def checkpoint(self, job: Job) -> Any:
        """Let the job save and end, and return what is to be queued again: the same job, which then goes on."""
        from submitit.helpers import DelayedSubmission

        if JobProcess.current is not None:
            JobProcess.current.end("SIGUSR1")
        return DelayedSubmission(self, job)
