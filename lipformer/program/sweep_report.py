"""What is told of a sweep: how far it is while it goes on, and at its end a line for each job, however it ended."""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import InterpolationResolutionError

from lipformer.errors import LipformerError, UsageError, one_line
from lipformer.program.sweep_plan import begin_plan
from lipformer.program.sweep_progress import SweepProgress
from lipformer.runs import layout
from lipformer.runs.folder import is_occupied
from lipformer.runs.lock import release_lock, take_lock
from lipformer.runs.outcome import FINAL
from lipformer.runs.sweep import RESUME, SweepJob, quoted, read_jobs, resume_command
from lipformer.system.atomic import naming
from lipformer.system.text import print_error

CHOOSE_ANOTHER = "choose another with hydra.sweep.dir=<folder>"


class SweepReport(Callback):
    """Follows a sweep: its plan, its lock, how far it is, and at its end a table, its claims and the exit code.

    The exit code is 1 if a job failed or did not end, else 3 if one diverged. In a process that a launcher starts for
    a job there is a copy, which does nothing.

    Args:
        program: `layout.TRAIN` or `layout.EVALUATE`.

    Attributes:
        running: the sweep that this process launches the jobs of, if any.
    """

    running: ClassVar["SweepReport | None"] = None

    def __init__(self, program: str):
        self._program = program
        self._folder = Path()
        self._progress: SweepProgress | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_progress": None}

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Claim the folder of the sweep and store the command line.

        A folder that is not empty is refused, unless it is that of the sweep to resume: jobs would be mixed up.
        """
        try:
            folder = self._folder = Path(config.hydra.sweep.dir).absolute()
        except InterpolationResolutionError:  # raised again, and explained, where the sweep begins
            return
        resumed = bool(OmegaConf.select(config, RESUME))
        try:
            if not resumed and folder.is_dir() and is_occupied(folder):
                raise UsageError(f"the sweep folder {config.hydra.sweep.dir} is not empty: {CHOOSE_ANOTHER}")
            with naming(folder):
                folder.mkdir(parents=True, exist_ok=True)
            take_lock(folder)
            if not resumed:
                begin_plan(folder, self._program, sys.argv[1:])
            self._progress = SweepProgress(folder, report=OmegaConf.select(config, "trainer.report", default=True))
        except LipformerError as error:  # Hydra turns an exception in a callback into a warning
            print_error(str(error))
            sys.exit(error.exit_code)
        _settle_folder(config, folder)
        if config.hydra.runtime.choices["hydra/launcher"] != "basic":
            self._progress.watch()
        SweepReport.running = self

    def expect(self, jobs: int) -> None:
        """Say how many jobs there will be, where the plan does not."""
        if self._progress is not None:
            self._progress.expected = jobs

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Say how far the sweep is, if its jobs run in this process."""
        if self._progress is not None and SweepReport.running is self:
            self._progress.update()

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Read the ``status.json`` of every job, report, and exit with a code other than 0 unless all jobs finished."""
        try:
            jobs = self.close()
        except Exception as error:  # Hydra would turn it into a warning
            print_error(one_line(error))
            sys.exit(1)
        statuses = {job.outcome.status for job in jobs}
        if statuses - {"finished", "pruned", "diverged"}:
            sys.exit(1)
        if "diverged" in statuses:
            sys.exit(3)

    def close(self) -> list[SweepJob]:
        """End the sweep in this process, wherever it stands: print the table and how to go on; return the jobs."""
        SweepReport.running = None
        try:
            if self._progress is not None:
                self._progress.close()
            jobs = read_jobs(self._folder)
            if jobs:
                self._tell(jobs)
            else:  # no job could be composed
                (self._folder / layout.SWEEP_PLAN).unlink(missing_ok=True)
        finally:
            release_lock(self._folder)
        with contextlib.suppress(OSError):  # it holds jobs
            self._folder.rmdir()
        return jobs

    def _tell(self, jobs: Sequence[SweepJob]) -> None:
        from lipformer.program.sweep_table import print_sweep  # imports rich

        print_sweep(jobs)
        _gather_claims(self._folder, jobs)
        if any(job.outcome.status not in FINAL for job in jobs):
            print(f"go on with: {resume_command(self._program, self._folder)}")


def _settle_folder(config: DictConfig, folder: Path) -> None:
    """Put the folder itself in place of its pattern, which another process that composes a job cannot resolve."""
    with read_write(config), open_dict(config):
        config.hydra.sweep.dir = str(folder)
        config.hydra.overrides.hydra.append(f"hydra.sweep.dir={quoted(folder)}")


def _gather_claims(sweep: Path, jobs: Sequence[SweepJob]) -> None:
    """Write ``claims.html`` for the jobs that tested claims, if there are any."""
    studies = [(_study_name(job), job.folder) for job in jobs]
    studies = [(name, folder) for name, folder in studies if (folder / layout.CLAIMS).is_file()]
    if studies:
        from lipformer.studies.claims_page import write_claims_page

        print(f"claims and figures: {write_claims_page(studies, sweep / layout.CLAIMS_PAGE)}")


def _study_name(job: SweepJob) -> str:
    return next((text.removeprefix("study=") for text in job.overrides if text.startswith("study=")), job.name)
