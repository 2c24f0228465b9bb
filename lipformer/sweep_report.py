"""The table at the end of a sweep: one line a job, whatever became of it."""

import sys
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from lipformer.run_folder import Outcome, read_outcome

NEVER_ENDED = Outcome("failed", 1, "it left no status.json: it was killed, or never began")


class SweepReport(Callback):
    """Prints the jobs of a sweep and ends the process with 1 if one failed, else 3 if one diverged."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Read every job's ``status.json`` and report."""
        jobs = list_jobs(Path(config.hydra.sweep.dir))
        Console().print(sweep_table(jobs))
        statuses = {outcome.status for _, _, outcome in jobs}
        if statuses - {"finished", "diverged"}:
            sys.exit(1)
        if "diverged" in statuses:
            sys.exit(3)


def list_jobs(sweep: Path) -> list[tuple[str, str, Outcome]]:
    """Return (folder name, overrides, outcome) of each job of a sweep, in order."""
    folders = sorted((f for f in sweep.iterdir() if f.is_dir()), key=lambda f: (len(f.name), f.name))
    jobs = []
    for folder in folders:
        overrides = folder / "overrides.yaml"
        typed = OmegaConf.load(overrides) if overrides.is_file() else []
        jobs.append((folder.name, " ".join(map(str, typed)), read_outcome(folder) or NEVER_ENDED))
    return jobs


def sweep_table(jobs: list[tuple[str, str, Outcome]]) -> Table:
    """Lay the jobs out, the best first marked."""
    table = Table(title="Sweep", caption="val: best nats/char on valid")
    for column in ("job", "overrides", "val", "status", "reason"):
        table.add_column(column, justify="right" if column == "val" else "left", overflow="fold")
    values = [outcome.best for _, _, outcome in jobs if outcome.best is not None]
    for name, overrides, outcome in jobs:
        value = "-" if outcome.best is None else f"{outcome.best:.4f}{' *' if outcome.best == min(values) else ''}"
        table.add_row(name, overrides, value, outcome.status, outcome.reason)
    return table
