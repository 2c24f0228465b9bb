"""The folder of a sweep: its plan, which is stored before the first job begins, and its jobs, however far they are."""

import functools
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lipformer.errors import UsageError
from lipformer.runs import layout
from lipformer.runs.outcome import FINAL, Outcome, read_outcome
from lipformer.runs.plain_files import read_config, read_json, read_overrides
from lipformer.system.atomic import replace_text
from lipformer.tasks import LANGUAGE, Task, task_of

RESUME, RETRY_FAILED = "sweep.resume", "sweep.retry_failed"
"""The keys by which a sweep goes on."""
WAITING = "waiting"
"""The status of a job that has not begun."""
NEVER_ENDED = Outcome("failed", 1, f"it left no {layout.STATUS}: it was killed, or never began")
"""The outcome of a job without status in a sweep that stored no plan, as those of version 0.1.0."""


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep was started with, and its jobs.

    Attributes:
        program: `layout.TRAIN` or `layout.EVALUATE`.
        arguments: the command line, without the flag ``-m`` and without what holds for one call only (`of_one_call`).
        directory: the directory that it was started in, which relative paths in its arguments start from.
        jobs: the overrides of each job, by its number. A search adds its jobs one by one.
    """

    program: str
    arguments: list[str]
    directory: str
    jobs: list[list[str]]


@dataclass(frozen=True)
class SweepJob:
    """A job of a sweep.

    Attributes:
        number: its place in the sweep, from 0.
        folder: its run folder, which may not exist yet.
        overrides: its overrides, as they were typed.
        outcome: how it ended, or that it is running, or `WAITING`.
        task: the task of its run.
    """

    number: int
    folder: Path
    overrides: list[str]
    outcome: Outcome
    task: Task = LANGUAGE

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name


def of_one_call(argument: str) -> bool:
    """Return whether an argument says how this call treats the sweep, and not what the sweep consists of."""
    return _key(argument) in (RESUME, RETRY_FAILED, "hydra.sweep.dir")


def without_sweep_keys(overrides: Sequence[str]) -> list[str]:
    """Return overrides without those of the sweep itself, which are none of a job's."""
    return [override for override in overrides if _key(override).partition(".")[0] != "sweep"]


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def quoted(path: Path) -> str:
    """Return a path as Hydra's grammar reads it, whatever its characters."""
    # Backslashes are themselves except before a quote.
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + found[2].replace("'", "\\'"), str(path))
    return f"'{escaped}'"


def resume_command(program: str, sweep: Path) -> str:
    """Return the command by which a sweep goes on, for a shell."""
    value = str(sweep) if re.fullmatch(r"[\w./~-]+", str(sweep), re.ASCII) else quoted(sweep)
    return f"python {program}.py -m {shlex.quote(f'{RESUME}={value}')}"


def write_plan(sweep: Path, plan: SweepPlan) -> None:
    """Store the plan in the folder of the sweep.

    Raises:
        WriteError: the file cannot be written.
    """
    replace_text(sweep / layout.SWEEP_PLAN, json.dumps(asdict(plan), indent=2) + "\n")


def read_plan(sweep: Path) -> SweepPlan | None:
    """Return the plan in the folder of a sweep; None if there is none.

    Raises:
        UsageError: the file is there, but damaged.
    """
    file = sweep / layout.SWEEP_PLAN
    if not file.is_file():
        return None
    told = read_json(file)
    try:
        plan = SweepPlan(**told)
        texts: list[Any] = [plan.program, plan.directory, *plan.arguments]
        texts += [override for job in plan.jobs for override in job]
        if (
            all(type(t) is str for t in texts)
            and type(plan.arguments) is list
            and all(type(part) is list for part in (plan.jobs, *plan.jobs))
        ):
            return plan
    except TypeError:  # other keys, or values that cannot be iterated
        pass
    raise UsageError(f"{file} is damaged: it does not hold the plan of a sweep; start the sweep anew")


def read_jobs(sweep: Path) -> list[SweepJob]:
    """Return the jobs of a sweep, in order, whatever the state of their folders.

    Args:
        sweep: the folder of the sweep.

    Raises:
        UsageError: its plan is damaged.
    """
    folders = sorted((f for f in sweep.iterdir() if f.is_dir()), key=lambda f: (len(f.name), f.name))
    typed = {folder: _overrides(folder) for folder in folders}
    plan = read_plan(sweep)
    if plan is None or not plan.jobs:  # Hydra's own sweeper stores no jobs
        begun = [folder for folder in folders if typed[folder] is not None or (folder / layout.STATUS).is_file()]
        return [
            SweepJob(number, folder, typed[folder] or [], read_outcome(folder) or NEVER_ENDED, _task(folder))
            for number, folder in enumerate(begun)
        ]
    numbered = [sweep / str(number) for number in range(len(plan.jobs))]
    own = [folder for folder, overrides in zip(numbered, plan.jobs, strict=True) if typed.get(folder) == overrides]
    others = [folder for folder in folders if folder not in own]  # hydra.sweep.subdir may name them otherwise
    jobs = []
    for number, overrides in enumerate(plan.jobs):
        folder = numbered[number]
        if folder not in own and (found := next((other for other in others if typed[other] == overrides), None)):
            others.remove(found)
            folder = found
        outcome = read_outcome(folder) or Outcome(WAITING, None)
        jobs.append(SweepJob(number, folder, overrides, outcome, _task(folder)))
    return jobs


def _task(folder: Path) -> Task:
    file = folder / layout.CONFIG
    return _read_task(file, _stamp(file))


def _overrides(folder: Path) -> list[str] | None:
    file = folder / layout.OVERRIDES
    read = _read_overrides(file, _stamp(file))
    return None if read is None else list(read)


# YAML takes milliseconds to read, and the jobs of a sweep are looked at again and again.
@functools.lru_cache(maxsize=10_000)
def _read_task(file: Path, stamp: tuple[int, int]) -> Task:
    return task_of(read_config(file))


@functools.lru_cache(maxsize=10_000)
def _read_overrides(file: Path, stamp: tuple[int, int]) -> tuple[str, ...] | None:
    read = read_overrides(file)
    return None if read is None else tuple(read)


def _stamp(file: Path) -> tuple[int, int]:
    """Return what changes with the content of a file; zeros if there is none."""
    try:
        found = file.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def settled(folder: Path, *, retry_failed: bool = False) -> Outcome | None:
    """Return the outcome of a job that needs no further work; None if it has to begin or to go on.

    Args:
        folder: the run folder of the job.
        retry_failed: whether a job that failed is to be repeated.
    """
    outcome = read_outcome(folder)
    if outcome is None or outcome.status not in FINAL:
        return None
    return None if outcome.status == "failed" and retry_failed else outcome
