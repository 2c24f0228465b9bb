"""Folders of sweeps as train.py -m leaves them, made of the runs of `run_folders`."""

import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path

from run_folders import write_run

from lipformer.runs.outcome import Outcome
from lipformer.runs.sweep import SweepPlan, write_plan

RATES = ("1e-4", "3e-4", "1e-3")
KINDS = {"dot_product": "DotProductAttention", "tied_l2": "TiedL2Attention", "contractive_l2": "ContractiveL2Attention"}
REFUSED = "width=15 is not divisible by heads=2"


def write_job(folder: Path, overrides: Sequence[str], status: str = "finished", **options) -> Path:
    """Write the folder of a job: one that was refused has a status alone, and one that waits has no folder."""
    typed = dict(override.split("=", 1) for override in overrides)
    if status == "waiting":
        return folder
    if status == "failed":
        folder.mkdir(parents=True)
        Outcome("failed", 2, REFUSED).write(folder)
    else:
        lr, depth, kind = float(typed.get("lr", 1e-3)), int(typed.get("depth", 2)), typed.get("attention", "tied_l2")
        best = 1.3 + 0.12 * abs(math.log10(lr) + 3.4) - 0.02 * depth + 0.05 * list(KINDS).index(kind)
        seed = int(typed.get("seed", 0))
        options = {"steps": 1200, "nats": best + 0.015 * math.sin(7.0 * seed), "seed": seed} | options
        if status == "diverged":
            options["diverges_at"] = 850
        write_run(folder, attention=KINDS[kind], lr=lr, depth=depth, status=status, **options)
        (folder / "checkpoints").mkdir()
        (folder / "report.html").touch()
    lines = "".join(f"- {json.dumps(override)}\n" for override in overrides)
    (folder / "overrides.yaml").write_text(lines)
    return folder


def write_sweep(
    folder: Path,
    jobs: Sequence[Sequence[str]],
    statuses: dict[int, str] | None = None,
    *,
    plan: bool = True,
    program: str = "train",
    **options,
) -> Path:
    """Write the folder of a sweep.

    Args:
        folder: to be made.
        jobs: the overrides of each job.
        statuses: of jobs that did not finish, by their numbers.
        plan: whether it has a plan; sweeps of version 0.1.0 have none.
        program: in the plan.
        options: of the runs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "multirun.yaml").write_text("name: made_up\n")
    if plan:
        write_plan(folder, SweepPlan(program, [], str(folder.parent), [list(job) for job in jobs]))
    for number, overrides in enumerate(jobs):
        write_job(folder / str(number), overrides, (statuses or {}).get(number, "finished"), **options)
    return folder


def grid(**swept: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each job of a sweep over all combinations."""
    return [
        [f"{key}={value}" for key, value in zip(swept, job, strict=True)] for job in itertools.product(*swept.values())
    ]


def eighteen(folder: Path, **options) -> Path:
    """Write a sweep of 18 jobs: two diverged, one failed, one runs, and two wait."""
    jobs = grid(lr=RATES, attention=tuple(KINDS), depth=("2", "6"))
    statuses = {13: "diverged", 12: "diverged", 5: "failed", 15: "running", 16: "waiting", 17: "waiting"}
    return write_sweep(folder, jobs, statuses, **options)
