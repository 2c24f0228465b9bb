"""How far a sweep is: a line in the terminal and its report, whenever a job has ended."""

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from lipformer.runs.outcome import FINAL
from lipformer.runs.sweep import SweepJob, read_jobs

log = logging.getLogger(__name__)

EVERY = 2.0
"""Seconds between two looks at the jobs of other processes."""
SHARE = 0.05
"""Largest share of the time that is spent on the report of a sweep, which takes the longer the more jobs there are."""


class SweepProgress:
    """Watches the jobs of a sweep from the process that launches them, whichever processes they run in.

    Args:
        folder: the folder of the sweep.

    Attributes:
        expected: number of jobs that there will be; 0 for those of the plan. A search plans them one by one.
    """

    def __init__(self, folder: Path):
        self.expected = 0
        self._folder = folder
        self._begun = time.monotonic()
        self._before = self._ended = sum(_has_ended(job) for job in read_jobs(folder))
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self) -> None:
        """Look at the jobs every few seconds from now on, in a thread; needed where jobs run in other processes."""
        self._thread = threading.Thread(target=self._look, name="sweep-progress", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(EVERY):
            with contextlib.suppress(OSError):  # the folder of a job that begins
                self.update()

    def update(self) -> None:
        """If jobs have ended since the last look, print how far the sweep is."""
        jobs = read_jobs(self._folder)
        ended = sum(map(_has_ended, jobs))
        if ended != self._ended:
            self._ended = ended
            print(self.line(jobs), flush=True)

    def line(self, jobs: Sequence[SweepJob]) -> str:
        """Return one line: how many jobs have ended, and how long the others will take if they take as long."""
        statuses = Counter(job.outcome.status for job in jobs)
        told = ", ".join(f"{count} {status}" for status, count in statuses.items() if status in FINAL)
        most = max(len(jobs), self.expected)
        line = f"sweep: {self._ended} of {most} jobs have ended ({told})"
        here = self._ended - self._before
        if here <= 0 or self._ended == most:
            return line
        seconds = (time.monotonic() - self._begun) / here * (most - self._ended)
        return f"{line}, about {duration(seconds)} left"

    def close(self) -> None:
        """End the watching."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()


def duration(seconds: float) -> str:
    """Return a time in its largest unit that fits: seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def _has_ended(job: SweepJob) -> bool:
    return job.outcome.status in FINAL
