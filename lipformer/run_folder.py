"""The run folder: claimed once, logged into, and closed with a status that says how the run ended."""

import contextlib
import json
import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from lipformer.atomic import replace_text
from lipformer.errors import DivergedError, LipformerError, UsageError, WriteError, one_line

log = logging.getLogger(__name__)


@dataclass
class Outcome:
    """How a job ended.

    Attributes:
        status: ``finished``, ``diverged``, ``failed`` or ``interrupted``.
        exit_code: of the process, were this its only job.
        reason: one line; empty where the job finished.
        best: best ``val/nats_per_char`` of a training, the nats per character of an evaluation; None where it
            was not reached.
    """

    status: str = "finished"
    exit_code: int = 0
    reason: str = ""
    best: float | None = None

    def end_by(self, error: BaseException) -> None:
        """Set status, exit code and reason from the exception that ended the job."""
        self.reason = str(error)
        match error:
            case KeyboardInterrupt():
                self.status, self.exit_code, self.reason = "interrupted", 130, "interrupted by the user (SIGINT)"
            case SystemExit(code=None):  # the answer to SIGTERM, Lightning's and `_terminate`'s
                self.status, self.exit_code, self.reason = "interrupted", 143, "terminated by the system (SIGTERM)"
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
        """Write ``status.json``."""
        replace_text(folder / "status.json", json.dumps(asdict(self), indent=2) + "\n")


def read_outcome(folder: Path) -> Outcome | None:
    """Return what ``status.json`` of a run folder says; None where there is none (yet), or it is broken."""
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
    if type(exit_code) is not int or (best is not None and type(best) not in (int, float)):  # bool is an int
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


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit


@contextlib.contextmanager
def sigterm_handler(handler: Any) -> Iterator[None]:
    """Answer SIGTERM by `handler` while the block runs; other threads than the main one cannot, and do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _close(folder: Path, outcome: Outcome, closed: Callable[[], None] | None) -> None:
    """Write how the job ended, and make of the folder what is to be made of it."""
    try:
        outcome.write(folder)
    except WriteError as error:
        if outcome.status == "finished":
            outcome.end_by(error)
            raise
        log.warning("%s", error)  # how the job ended stands
    if closed is not None:
        closed()


@contextlib.contextmanager
def recorded(folder: Path, name: str, closed: Callable[[], None] | None = None) -> Iterator[Outcome]:
    """Log the job into ``<folder>/<name>.log``, its traceback too, and close the folder with ``status.json``.

    What is to be made of the closed folder, `closed` makes; interrupted in it, a job that had finished has not.

    Everything logged goes to the file; lipformer's own lines go to the terminal as well. SIGTERM ends the job by an
    exception, so that the folder is closed then too.
    """
    root = logging.getLogger()
    rank = local_rank()
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
        with sigterm_handler(_terminate):
            yield outcome
    except BaseException as error:
        outcome.end_by(error)
        log.error("the run ended as %s", outcome.status, exc_info=True)
        raise
    finally:
        try:
            if rank == 0:
                _close(folder, outcome, closed)
        except KeyboardInterrupt as error:
            log.warning("interrupted while the report was made: %s", folder)
            if outcome.status == "finished":
                outcome.end_by(error)
                outcome.write(folder)
                raise
        finally:
            logging.captureWarnings(False)
            logging.raiseExceptions = raising
            root.handlers[:], root.level = before
            with contextlib.suppress(OSError):  # a full disk costs lines too
                file.close()
