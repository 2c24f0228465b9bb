"""The run folder: it belongs to one run, holds its log, and is closed with the status of the run."""

import contextlib
import json
import logging
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from lipformer.errors import UsageError, WriteError
from lipformer.runs import layout
from lipformer.runs.lock import release_lock, take_lock
from lipformer.runs.outcome import Outcome, read_outcome
from lipformer.runs.plain_files import read_overrides
from lipformer.system.atomic import is_part, replace_text
from lipformer.system.ranks import rank
from lipformer.system.signals import Terminated, ending_signals
from lipformer.system.text import VisibleFormatter

log = logging.getLogger(__name__)


def claim_folder(folder: Path) -> None:
    """Claim a folder for a run.

    The processes of one training share a folder; the logs of the others may be there before the first claims it.

    Raises:
        UsageError: the folder is not empty; a run never writes over another.
    """
    if rank() == 0:
        occupied = any(not layout.is_log_of_another_rank(file.name) for file in folder.iterdir())
    else:
        outcome = read_outcome(folder)
        occupied = outcome is not None and outcome.status != "running"
    if occupied:
        raise UsageError(f"the run folder {folder} is not empty: choose another with hydra.run.dir=<folder>")


def claim_job_folder(folder: Path, overrides: Sequence[str]) -> None:
    """Claim a folder for a job of a sweep, which goes on in it if it is its own, and store the job's overrides.

    Args:
        folder: the run folder.
        overrides: as they were typed, by which a folder is recognised as the job's own.

    Raises:
        UsageError: the folder is that of another job, or of another run.
    """
    file = folder / layout.OVERRIDES
    if is_occupied(folder) and read_overrides(file) != list(overrides):
        raise UsageError(f"the run folder {folder} is not empty: give each job one of its own with hydra.sweep.subdir")
    if not file.exists():
        replace_text(file, yaml.safe_dump(list(overrides)))  # in ASCII: YAML takes other characters for line breaks


def is_occupied(folder: Path) -> bool:
    """Return whether a folder holds more than what a process killed in its first moments leaves."""
    return any(file.name != layout.LOCK and not is_part(file) for file in folder.iterdir())


def record_refusal(folder: Path, outcome: Outcome) -> None:
    """Write that a job was refused before it began, or failed again, for the table of its sweep.

    The status of a job that has ended otherwise, can go on or runs in another process stays as it is.

    Args:
        folder: the job's own run folder.
        outcome: with the reason.
    """
    known = read_outcome(folder)
    if known is not None and known.status != "failed":
        return
    with contextlib.suppress(UsageError, WriteError):  # another process has begun the job; the disk is full
        take_lock(folder)
        try:
            known = read_outcome(folder)
            if known is None or known.status == "failed":
                outcome.write(folder)
        finally:
            release_lock(folder)


def forget_attempt(folder: Path) -> None:
    """Delete the metrics of an attempt that left no checkpoint, since the next one begins at the first step again."""
    for name in (layout.METRICS_CSV, layout.METRICS_JSON):
        (folder / name).unlink(missing_ok=True)


def write_metrics(folder: Path, metrics: dict[str, Any]) -> None:
    """Write ``metrics.json``, one value for each metric; values that are not finite become null, as JSON has none."""
    if rank() == 0:
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in metrics.items()}
        replace_text(folder / layout.METRICS_JSON, json.dumps(finite, indent=2) + "\n")


def _close(folder: Path, outcome: Outcome, closed: Callable[[], None] | None) -> None:
    """Write the status of the job, call `closed`, and release the lock.

    If the status cannot be written, the lock stays, and tells a reader that the process has gone.
    """
    try:
        outcome.write(folder)
    except WriteError as error:
        if outcome.exit_code == 0:
            outcome.end_by(error)
            raise
        log.warning("%s", error)  # how the job ended stands
        return
    try:
        if closed is not None:
            closed()
    except (KeyboardInterrupt, Terminated) as error:
        log.warning("interrupted while the report was made: %s", folder)
        if outcome.exit_code == 0:
            outcome.end_by(error)
            outcome.write(folder)
            raise
    finally:
        release_lock(folder)


@contextlib.contextmanager
def recorded(folder: Path, name: str, closed: Callable[[], None] | None = None) -> Iterator[Outcome]:
    """Record a job in its folder: its log, with the traceback of an error, and at its end ``status.json``.

    Everything that is logged goes to ``<folder>/<name>.log``; the lines of lipformer itself go to the terminal as well.
    While the job runs, the folder is locked and its status is ``running``. Signals end the job by an exception
    (`lipformer.system.signals`), so that the folder is closed in that case too.

    Args:
        folder: the run folder.
        name: the name of the log, without suffix.
        closed: called after the status was written, such as to draw a report. If it is interrupted, the status of a
            finished job becomes that of an interrupted one.

    Raises:
        UsageError: another process has locked the folder.
    """
    root = logging.getLogger()
    number = rank()
    if number == 0:
        take_lock(folder)
        Outcome("running", None).write(folder)
    file = logging.FileHandler(folder / layout.log_file(name, number), encoding="utf-8")
    file.setFormatter(VisibleFormatter("[%(asctime)s][%(name)s][%(levelname)s] %(message)s"))
    terminal = logging.StreamHandler(sys.stdout)
    terminal.setFormatter(VisibleFormatter())
    terminal.setLevel(logging.INFO if number == 0 else logging.ERROR)
    terminal.addFilter(lambda record: record.name.startswith("lipformer") and not record.exc_info)
    before = root.handlers[:], root.level
    root.handlers[:] = [file, terminal]
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    raising, logging.raiseExceptions = logging.raiseExceptions, False  # a closed pipe loses lines, not the job
    outcome = Outcome()
    try:
        with ending_signals:
            try:
                yield outcome
            except BaseException as error:
                outcome.end_by(error)
                if outcome.exit_code == 0:
                    log.info("the run ended as %s: %s", outcome.status, outcome.reason)
                else:
                    log.error("the run ended as %s", outcome.status, exc_info=True)
                raise
            finally:
                if number == 0:
                    _close(folder, outcome, closed)
    finally:
        logging.captureWarnings(False)
        logging.raiseExceptions = raising
        root.handlers[:], root.level = before
        with contextlib.suppress(OSError):  # a full disk loses lines as well
            file.close()
