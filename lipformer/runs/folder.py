"""The run folder: claimed once, logged into, and closed with a status that says how the run ended."""

import contextlib
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lipformer.errors import DivergedError, LipformerError, UsageError, WriteError, one_line
from lipformer.runs.lock import lock_holder, release_lock, take_lock
from lipformer.system.atomic import naming, replace_text
from lipformer.system.signals import EXIT_CODES, Terminated, ending_signals

log = logging.getLogger(__name__)


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
        file, text = folder / "status.json", json.dumps(asdict(self), indent=2) + "\n"
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
    told = read_json(folder / "status.json")
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


def read_json(file: Path) -> Any:
    """Return what a file of JSON holds, None where it cannot be read; a whole number too large for float is inf."""
    try:
        return json.loads(file.read_text(encoding="utf-8"), parse_int=_whole_number)
    except (OSError, ValueError, RecursionError):
        return None


def _whole_number(digits: str) -> int | float:
    return int(digits) if len(digits) < 300 else float(digits)


def local_rank() -> int:
    """Return this process's number among those of a distributed run on this machine; 0 where there is one.

    Lightning starts the others by the command line of the first, in the same folder: they leave it alone.
    """
    return int(os.environ.get("LOCAL_RANK", "0"))


def claim_folder(folder: Path) -> None:
    """Make `folder` the home of one run.

    Raises:
        UsageError: it holds something already; a run never writes over another.
    """
    if local_rank() == 0 and any(folder.iterdir()):
        raise UsageError(f"the run folder {folder} is not empty: choose another with hydra.run.dir=<folder>")


def write_metrics(folder: Path, metrics: dict[str, Any]) -> None:
    """Write ``metrics.json``: flat names, one value each; null for what is not finite, which JSON cannot say."""
    if local_rank() == 0:
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in metrics.items()}
        replace_text(folder / "metrics.json", json.dumps(finite, indent=2) + "\n")


def _close(folder: Path, outcome: Outcome, closed: Callable[[], None] | None) -> None:
    """Write how the job ended, make of the folder what is to be made of it, and unlock it.

    Where the status cannot be written, the lock stays: then a reader is told that the process is gone.
    """
    try:
        outcome.write(folder)
    except WriteError as error:
        if outcome.status == "finished":
            outcome.end_by(error)
            raise
        log.warning("%s", error)  # how the job ended stands
        return
    try:
        if closed is not None:
            closed()
    except (KeyboardInterrupt, Terminated) as error:
        log.warning("interrupted while the report was made: %s", folder)
        if outcome.status == "finished":
            outcome.end_by(error)
            outcome.write(folder)
            raise
    finally:
        release_lock(folder)


@contextlib.contextmanager
def recorded(folder: Path, name: str, closed: Callable[[], None] | None = None) -> Iterator[Outcome]:
    """Log the job into ``<folder>/<name>.log``, its traceback too, and close the folder with ``status.json``.

    What is to be made of the closed folder, `closed` makes; interrupted in it, a job that had finished has not.

    Everything logged goes to the file; lipformer's own lines go to the terminal as well. Signals end the job by an
    exception (`lipformer.system.signals`), so that the folder is closed then too; until then it is locked, and its
    status is ``running``.

    Raises:
        UsageError: another process has locked the folder.
    """
    root = logging.getLogger()
    rank = local_rank()
    if rank == 0:
        take_lock(folder)
        Outcome("running", None).write(folder)
    file = logging.FileHandler(folder / (f"{name}.log" if rank == 0 else f"{name}_rank{rank}.log"), encoding="utf-8")
    file.setFormatter(logging.Formatter("[%(asctime)s][%(name)s][%(levelname)s] %(message)s"))
    terminal = logging.StreamHandler(sys.stdout)
    terminal.setLevel(logging.INFO if rank == 0 else logging.ERROR)
    terminal.addFilter(lambda record: record.name.startswith("lipformer") and not record.exc_info)
    before = root.handlers[:], root.level
    root.handlers[:] = [file, terminal]
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    raising, logging.raiseExceptions = logging.raiseExceptions, False  # a closed pipe costs lines, not the job
    outcome = Outcome()
    try:
        with ending_signals:
            try:
                yield outcome
            except BaseException as error:
                outcome.end_by(error)
                log.error("the run ended as %s", outcome.status, exc_info=True)
                raise
            finally:
                if rank == 0:
                    _close(folder, outcome, closed)
    finally:
        logging.captureWarnings(False)
        logging.raiseExceptions = raising
        root.handlers[:], root.level = before
        with contextlib.suppress(OSError):  # a full disk costs lines too
            file.close()
