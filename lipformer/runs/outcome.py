"""The status of a job, which ``status.json`` holds."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from lipformer.errors import DivergedError, LipformerError, Pruned, WriteError, one_line
from lipformer.runs import layout
from lipformer.runs.lock import lock_holder
from lipformer.runs.plain_files import read_json
from lipformer.system.atomic import naming, replace_text
from lipformer.system.signals import EXIT_CODES, Terminated

FINAL = ("finished", "pruned", "diverged", "failed")
"""The statuses of a job that has come to its end; one with any other status can go on."""


@dataclass
class Outcome:
    """How a job ended, or that it is running.

    Attributes:
        status: ``running``, ``finished``, ``pruned`` (ended early by a search, as others were better), ``diverged``,
            ``failed``, ``interrupted`` (Ctrl-C), ``terminated`` (by another signal), or ``killed``: its process has
            gone and left no other status.
        exit_code: the exit code of a process with this job alone; None if it is not known, of a job that is running or
            was killed.
        reason: one line; empty if the job finished.
        best: of a training, the best value of the task's objective on valid, such as nats per character; of an
            evaluation, the value on its split; None if there is none.
    """

    status: str = "finished"
    exit_code: int | None = 0
    reason: str = ""
    best: float | None = None

    def end_by(self, error: BaseException) -> None:
        """Set status, exit code and reason from the exception that ended the job."""
        self.reason = str(error)
        match error:
            case KeyboardInterrupt():
                self.status, self.exit_code, self.reason = "interrupted", 130, "interrupted by the user (SIGINT)"
            case Terminated():
                self.status, self.exit_code = "terminated", EXIT_CODES[error.name]
            case DivergedError():
                self.status, self.exit_code = "diverged", error.exit_code
            case Pruned():
                self.status, self.exit_code = "pruned", error.exit_code
            case LipformerError():
                self.status, self.exit_code = "failed", error.exit_code
            case _:
                self.status, self.exit_code = "failed", 1
                self.reason = one_line(error)

    @property
    def objective(self) -> float:
        """The value that a sweeper minimises: infinity if the job diverged, nan if it did not finish."""
        if self.status == "diverged":
            return math.inf
        return math.nan if self.best is None or self.status != "finished" else self.best

    def write(self, folder: Path) -> None:
        """Write ``status.json``.

        If the disk has no room for a new file, the old one is overwritten in its place.

        Raises:
            WriteError: it can be written in neither way.
        """
        file, text = folder / layout.STATUS, json.dumps(asdict(self), indent=2) + "\n"
        try:
            replace_text(file, text)
        except WriteError:
            if not file.is_file():
                raise
            with naming(file), file.open("r+", encoding="utf-8") as stream:
                stream.write(text)
                stream.truncate()


def read_outcome(folder: Path) -> Outcome | None:
    """Return the outcome of the run in a folder, or that it is running or was killed.

    A run that is killed cannot write so into ``status.json``. Its lock names its process, and on the same machine it
    can be found out whether that process is running.

    Returns:
        The outcome; None if there is no ``status.json``, or it is broken: the run did not start, or is one of version
        0.1.0, which wrote it at its end.
    """
    outcome = _read_status(folder)
    if outcome is None or outcome.status != "running":
        return outcome
    process = lock_holder(folder)
    if process is None or process.is_alive() is not False:
        outcome.reason = str(process or "")
        return outcome
    outcome = _read_status(folder)  # it may have ended in the meantime
    if outcome is not None and outcome.status == "running":
        outcome.status, outcome.reason = "killed", f"{process} is gone and left no other status"
    return outcome


def _read_status(folder: Path) -> Outcome | None:
    told = read_json(folder / layout.STATUS)
    if not isinstance(told, dict):
        return None
    status, exit_code, reason, best = (
        told.get("status"),
        told.get("exit_code", 0),
        told.get("reason", ""),
        told.get("best"),
    )
    if not isinstance(status, str) or not isinstance(reason, str):
        return None
    unknown = exit_code is None and status in ("running", "killed")
    if type(exit_code) is not int and not unknown:  # bool is an int
        return None
    if best is not None and type(best) not in (int, float):
        return None
    return Outcome(status, exit_code, reason, best)
