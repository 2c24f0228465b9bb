"""How far a sweep is: a line in the terminal and its report, whenever a job has ended."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from lipformer.errors import one_line
from lipformer.runs.outcome import FINAL
from lipformer.runs.sweep import SweepJob, read_jobs

EVERY = 2.0
"""Seconds between two looks at the jobs of other processes."""
SHARE = 0.05
"""Largest share of the time that is spent on the report of a sweep, which takes the longer the more jobs there are."""


class SweepProgress:
    """Watches the jobs of a sweep from the process that launches them, whichever processes they run in.

    Args:
        folder: the folder of the sweep.
        report: whether to write its report.

    Attributes:
        expected: number of jobs that there will be; 0 for those of the plan. A search plans them one by one.
    """

    def __init__(self, folder: Path, *, report: bool):
        self.expected = 0
        self._folder = folder
        self._wants_report = report
        self._report_seconds, self._report_at = 0.0, 0.0
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
        """If jobs have ended since the last look, print how far the sweep is, and write its report."""
        jobs = read_jobs(self._folder)
        ended = sum(map(_has_ended, jobs))
        if ended == self._ended:
            return
        self._ended = ended
        print(self.line(jobs), flush=True)
        if self._report_seconds <= SHARE * (time.monotonic() - self._report_at):
            self._report()

    def _report(self) -> None:
        if not self._wants_report:
            return
        begun = time.monotonic()
        try:
            from lipformer.report.sweep import write_sweep_report  # imports Bokeh and Matplotlib

            page = write_sweep_report(self._folder)[1]
        except Exception as error:  # whatever the error, the jobs go on
            print(f"the report of the sweep could not be written ({one_line(error)})", flush=True)
        else:
            if self._report_at == 0:
                print(f"look at the sweep in: {page}", flush=True)
        self._report_at = time.monotonic()
        self._report_seconds = self._report_at - begun

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
        """End the watching, and write the report of what has ended."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._ended:
            self._report()


def duration(seconds: float) -> str:
    """Return a time in its largest unit that fits: seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def _has_ended(job: SweepJob) -> bool:
    return job.outcome.status in FINAL
