"""The table at the end of a sweep: one line a job, whatever became of it."""

import sys
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from lipformer.atomic import replace_text
from lipformer.run_folder import Outcome, read_outcome

WIDE = 200
NEVER_ENDED = Outcome("failed", 1, "it left no status.json: it was killed, or never began")


class SweepReport(Callback):
    """Prints the jobs of a sweep and ends the process with 1 if one failed, else 3 if one diverged."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Refuse a folder in use: no job would write into it, and the report would be of the sweep before."""
        folder = Path(config.hydra.sweep.dir)
        if folder.is_dir() and any(folder.iterdir()):
            line = f"error: the sweep folder {folder} is not empty: choose another with hydra.sweep.dir=<folder>"
            print(line, file=sys.stderr)  # Hydra turns an exception in a callback into a warning
            sys.exit(2)

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Leave the job's overrides in its folder, whatever became of it, for the report to read."""
        if config.hydra.mode == RunMode.MULTIRUN:
            folder = Path(config.hydra.runtime.output_dir)
            overrides = OmegaConf.create(list(job_return.overrides or []))
            replace_text(folder / "overrides.yaml", OmegaConf.to_yaml(overrides))

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Read every job's ``status.json`` and report."""
        jobs = list_jobs(Path(config.hydra.sweep.dir))
        # In a file or a pipe a line is as long as it needs to be: a folded path cannot be searched for.
        Console(width=None if sys.stdout.isatty() else WIDE).print(sweep_table(jobs))
        statuses = {outcome.status for _, _, outcome in jobs}
        if statuses - {"finished", "diverged"}:
            sys.exit(1)
        if "diverged" in statuses:
            sys.exit(3)


def list_jobs(sweep: Path) -> list[tuple[str, list[str], Outcome]]:
    """Return (folder name, overrides, outcome) of each job of a sweep, in order."""
    folders = sorted((f for f in sweep.iterdir() if f.is_dir()), key=lambda f: (len(f.name), f.name))
    jobs = []
    for folder in folders:
        file = folder / "overrides.yaml"
        overrides = [str(override) for override in OmegaConf.load(file)] if file.is_file() else []
        jobs.append((folder.name, overrides, read_outcome(folder) or NEVER_ENDED))
    return jobs


def sweep_table(jobs: list[tuple[str, list[str], Outcome]]) -> Table:
    """Lay the jobs out with the overrides in which they differ, the best one marked."""
    table = Table(title="Sweep", caption="nats: per character; of a training, the best on valid")
    for column in ("job", "overrides", "nats", "status", "reason"):
        table.add_column(column, justify="right" if column == "nats" else "left", overflow="fold")
    known = [set(overrides) for _, overrides, _ in jobs if overrides]
    shared = set.intersection(*known) if len(known) > 1 else set()
    best = min((outcome.best for _, _, outcome in jobs if outcome.best is not None), default=None)
    for name, overrides, outcome in jobs:
        value = "-" if outcome.best is None else f"{outcome.best:.4f}{' *' if outcome.best == best else ''}"
        differing = " ".join(override for override in overrides if override not in shared)
        table.add_row(name, differing, value, outcome.status, outcome.reason)
    return table
