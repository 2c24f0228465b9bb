"""The table at the end of a sweep: one line for each job, however it ended."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lipformer.runs import layout
from lipformer.runs.outcome import Outcome, read_outcome
from lipformer.runs.plain_files import read_config, read_overrides
from lipformer.system.atomic import replace_text
from lipformer.tasks import LANGUAGE, Task, task_of

WIDE = 200
NEVER_ENDED = Outcome("failed", 1, f"it left no {layout.STATUS}: it was killed, or never began")


class SweepReport(Callback):
    """Prints the jobs of a sweep, collects their claims, and exits with 1 if a job failed, else 3 if one diverged."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Refuse a sweep folder that is not empty: no job would run, and the report would be of an earlier sweep."""
        folder = Path(config.hydra.sweep.dir)
        if folder.is_dir() and any(folder.iterdir()):
            line = f"error: the sweep folder {folder} is not empty: choose another with hydra.sweep.dir=<folder>"
            print(line, file=sys.stderr)  # Hydra turns an exception in a callback into a warning
            sys.exit(2)

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Write the overrides of the job into its folder, however it ended, for the report."""
        if config.hydra.mode == RunMode.MULTIRUN:
            folder = Path(config.hydra.runtime.output_dir)
            overrides = OmegaConf.create(list(job_return.overrides or []))
            replace_text(folder / layout.OVERRIDES, OmegaConf.to_yaml(overrides))

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Read the ``status.json`` of every job and report."""
        jobs = list_jobs(Path(config.hydra.sweep.dir))
        # In a file or a pipe lines are not folded: a folded path cannot be searched for.
        Console(width=None if sys.stdout.isatty() else WIDE).print(sweep_table(jobs))
        _gather_claims(Path(config.hydra.sweep.dir), jobs)
        statuses = {job.outcome.status for job in jobs}
        if statuses - {"finished", "diverged"}:
            sys.exit(1)
        if "diverged" in statuses:
            sys.exit(3)


@dataclass(frozen=True)
class Job:
    """A job of a sweep.

    Attributes:
        name: name of its folder.
        overrides: its overrides, as they were typed.
        outcome: how it ended.
        task: the task of its run.
    """

    name: str
    overrides: list[str]
    outcome: Outcome
    task: Task = LANGUAGE


def _gather_claims(sweep: Path, jobs: Sequence[Job]) -> None:
    """Write ``claims.html`` for the jobs that tested claims, if there are any."""
    studies = [(_study_name(job), sweep / job.name) for job in jobs]
    studies = [(name, folder) for name, folder in studies if (folder / layout.CLAIMS).is_file()]
    if studies:
        from lipformer.studies.claims_page import write_claims_page

        print(f"claims and figures: {write_claims_page(studies, sweep / layout.CLAIMS_PAGE)}")


def _study_name(job: Job) -> str:
    return next((text.removeprefix("study=") for text in job.overrides if text.startswith("study=")), job.name)


def list_jobs(sweep: Path) -> list[Job]:
    """Return the jobs of a sweep, in order."""
    folders = sorted((f for f in sweep.iterdir() if f.is_dir()), key=lambda f: (len(f.name), f.name))
    jobs = []
    for folder in folders:
        overrides = read_overrides(folder / layout.OVERRIDES) or []
        task = task_of(read_config(folder / layout.CONFIG))
        jobs.append(Job(folder.name, overrides, read_outcome(folder) or NEVER_ENDED, task))
    return jobs


def sweep_table(jobs: list[Job]) -> Table:
    """Return a table of the jobs with the overrides in which they differ; the best job of each task is marked."""
    objectives = list(dict.fromkeys(job.task.objective for job in jobs)) or [LANGUAGE.objective]
    caption = "; ".join(f"{objective.unit}: {objective.long}" for objective in objectives)
    table = Table(title="Sweep", caption=f"{caption}; of a training, the best on valid")
    for column in ("job", "overrides", *(objective.unit for objective in objectives), "status", "reason"):
        numbers = column in [objective.unit for objective in objectives]
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    known = [set(job.overrides) for job in jobs if job.overrides]
    shared = set.intersection(*known) if len(known) > 1 else set()
    for job in jobs:
        rivals = [other.outcome.best for other in jobs if other.task == job.task and other.outcome.best is not None]
        scores = [_score(job.outcome.best, rivals) if job.task.objective == one else "" for one in objectives]
        differing = " ".join(override for override in job.overrides if override not in shared)
        # As Text: a list such as [/data/a.txt] in an override or a reason would be read as markup.
        table.add_row(*map(Text, (job.name, differing, *scores, job.outcome.status, job.outcome.reason)))
    return table


def _score(best: float | None, rivals: list[float]) -> str:
    return "-" if best is None else f"{best:.4f}{' *' if best == min(rivals) else ''}"
