"""The run folder: it belongs to one run, holds its log, and is closed with the status of the run."""

import contextlib
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lipformer.errors import UsageError, WriteError
from lipformer.runs import layout
from lipformer.runs.lock import release_lock, take_lock
from lipformer.runs.outcome import Outcome
from lipformer.system.atomic import replace_text
from lipformer.system.signals import Terminated, ending_signals

log = logging.getLogger(__name__)


def local_rank() -> int:
    """Return the number of this process among those of a distributed run on this machine; 0 if it is the only one.

    Lightning starts the others by the command line of the first, with the same folder; they do not write into it.
    """
    return int(os.environ.get("LOCAL_RANK", "0"))


def claim_folder(folder: Path) -> None:
    """Claim a folder for a run.

    Raises:
        UsageError: the folder is not empty; a run never writes over another.
    """
    if local_rank() == 0 and any(folder.iterdir()):
        raise UsageError(f"the run folder {folder} is not empty: choose another with hydra.run.dir=<folder>")


def write_metrics(folder: Path, metrics: dict[str, Any]) -> None:
    """Write ``metrics.json``, one value for each metric; values that are not finite become null, as JSON has none."""
    if local_rank() == 0:
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
    rank = local_rank()
    if rank == 0:
        take_lock(folder)
        Outcome("running", None).write(folder)
    file = logging.FileHandler(folder / layout.log_file(name, rank), encoding="utf-8")
    file.setFormatter(logging.Formatter("[%(asctime)s][%(name)s][%(levelname)s] %(message)s"))
    terminal = logging.StreamHandler(sys.stdout)
    terminal.setLevel(logging.INFO if rank == 0 else logging.ERROR)
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
                if rank == 0:
                    _close(folder, outcome, closed)
    finally:
        logging.captureWarnings(False)
        logging.raiseExceptions = raising
        root.handlers[:], root.level = before
        with contextlib.suppress(OSError):  # a full disk loses lines as well
            file.close()
