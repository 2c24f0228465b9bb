"""How a job ended, or that it is running: what ``status.json`` says."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from lipformer.errors import DivergedError, LipformerError, WriteError, one_line
from lipformer.runs import layout
from lipformer.runs.lock import lock_holder
from lipformer.runs.plain_files import read_json
from lipformer.system.atomic import naming, replace_text
from lipformer.system.signals import EXIT_CODES, Terminated


@dataclass
class Outcome:
    """How a job ended.

    Attributes:
        status: ``running``, ``finished``, ``diverged``, ``failed``, ``interrupted`` (Ctrl-C), ``terminated`` (by
            another signal), or ``killed``: its process is gone, and left no other status.
        exit_code: of the process, were this its only job; None where it is not known: running, or killed.
        reason: one line; empty where the job finished.
        best: best value of the task's objective on valid, such as nats per character; of an evaluation its figure;
            None where it was not reached.
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
            case LipformerError():
                self.status, self.exit_code = "failed", error.exit_code
            case _:
                self.status, self.exit_code = "failed", 1
                self.reason = one_line(error)

    @property
    def objective(self) -> float:
        """What a sweeper minimises: a diverged job is the worst there is, a failed one has no value."""
        if self.status == "diverged":
            return math.inf
        return math.nan if self.best is None or self.status != "finished" else self.best

    def write(self, folder: Path) -> None:
        """Write ``status.json``.

        A disk that has no room for a new file has some for the old one, which said that the run goes.

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
    """Return how a run ended, or that it still goes, or that it was killed.

    Its ``status.json`` cannot say that it was killed; its lock says which process it is, and whether that one still
    goes is known on the machine it is on. None where there is no ``status.json``, or it is broken: the run did not
    begin, or is of version 0.1.0, which wrote it at the end.
    """
    outcome = _read_status(folder)
    if outcome is None or outcome.status != "running":
        return outcome
    process = lock_holder(folder)
    if process is None or process.is_alive() is not False:
        outcome.reason = str(process or "")
        return outcome
    outcome = _read_status(folder)  # it may have ended while we looked
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
    if type(exit_code) is not int and (exit_code, status) != (None, "running"):  # bool is an int
        return None
    if best is not None and type(best) not in (int, float):
        return None
    return Outcome(status, exit_code, reason, best)
