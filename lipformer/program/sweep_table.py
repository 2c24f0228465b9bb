"""The table at the end of a sweep: a line for each job, however it ended."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lipformer.runs.sweep import SweepJob
from lipformer.system.text import visible
from lipformer.tasks import LANGUAGE

WIDE = 200


def print_sweep(jobs: Sequence[SweepJob]) -> None:
    """Print `sweep_table`. In a file or a pipe lines are not folded: a folded path cannot be searched for."""
    Console(width=None if sys.stdout.isatty() else WIDE).print(sweep_table(jobs))


def sweep_table(jobs: Sequence[SweepJob]) -> Table:
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
        rivals = [other for other in jobs if other.task == job.task]
        scores = [_score(job, rivals) if job.task.objective == one else "" for one in objectives]
        differing = " ".join(override for override in job.overrides if override not in shared)
        # As Text: a list such as [/data/a.txt] in an override or a reason would be read as markup.
        cells = (job.name, differing, *scores, job.outcome.status, job.outcome.reason)
        table.add_row(*map(Text, map(visible, cells)))
    return table


def _score(job: SweepJob, rivals: Sequence[SweepJob]) -> str:
    """Return the best value of a job, marked if no other that ended well has a better one."""
    if job.outcome.best is None:
        return "-"
    values = [rival.outcome.best for rival in rivals if rival.outcome.exit_code == 0 and rival.outcome.best is not None]
    return f"{job.outcome.best:.4f}{' *' if job.outcome.exit_code == 0 and job.outcome.best == min(values) else ''}"
