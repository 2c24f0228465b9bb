"""What a run folder tells once the run has ended, or while it still goes: read into plain data, without torch."""

import glob
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lipformer.errors import UsageError
from lipformer.runs import layout
from lipformer.runs.metric_names import TOKENS, named_today
from lipformer.runs.metrics_csv import EPOCH, STEP, read_table
from lipformer.runs.outcome import Outcome, read_outcome
from lipformer.runs.plain_files import read_config, read_json
from lipformer.tasks import Task, task_of

LARGEST = 2**53
"""Step and number of tokens at the most: a float counts no further. Others are not known."""
DATED = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_\d+-(\w+)(-sweep)?")
"""Names that folders get by default: their date tells a reader nothing, their id does."""


@dataclass(frozen=True)
class Series:
    """One metric over a run, in the rows in which it stands.

    Attributes:
        steps: (rows,), as in the column ``step``, never falling.
        tokens: (rows,), seen up to each step; between two rows that say it, interpolated.
        values: (rows,), inf and nan among them.
    """

    steps: np.ndarray
    tokens: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class RunRecord:
    """All that a run folder says in files of text.

    Attributes:
        folder: where it was read.
        config: ``config.yaml``; empty where it cannot be read, as the next ones.
        outcome: how it ended, or that it goes (`read_outcome`); None where the folder does not say.
        metrics: ``metrics.json``, flat names.
        series: the columns of ``metrics.csv``.
        samples: ``samples.json``, or None.
        certificate: ``certificate.json``, or None.
    """

    folder: Path
    config: dict[str, Any]
    outcome: Outcome | None
    metrics: dict[str, Any]
    series: dict[str, Series]
    samples: dict[str, Any] | None
    certificate: dict[str, Any] | None

    @property
    def task(self) -> Task:
        """What it was trained for, which names its metrics."""
        return task_of(self.config)

    @property
    def status(self) -> str:
        """Of the run, as `Outcome` has it; ``running`` where the folder does not say."""
        return self.outcome.status if self.outcome else "running"


def read_record(folder: Path) -> RunRecord:
    """Read a run folder, whatever state it is in.

    A run that still goes, one killed in the middle of a row, and one of a version without some of the files are read
    as far as they go; what is missing or broken is left out.

    Raises:
        UsageError: there is no such folder.
    """
    if not os.path.isdir(folder):  # unlike is_dir, no error where it may not be asked
        raise UsageError(f"{folder}: no such run folder")
    config = read_config(folder / layout.CONFIG)
    name = named_today if is_of_first_version(config) else str
    return RunRecord(
        folder=folder,
        config=config,
        outcome=read_outcome(folder),
        metrics={name(metric): value for metric, value in (_read_json(folder / layout.METRICS_JSON) or {}).items()},
        series={name(metric): series for metric, series in read_series(folder / layout.METRICS_CSV).items()},
        samples=_read_json(folder / layout.SAMPLES),
        certificate=_read_json(folder / layout.CERTIFICATE),
    )


def tasks_of(records: Sequence[RunRecord]) -> list[Task]:
    """Return what the runs were trained for, each task once."""
    return list(dict.fromkeys(record.task for record in records))


def read_series(file: Path) -> dict[str, Series]:
    """Read ``metrics.csv`` by columns; empty where there is no such file, or no whole row in it."""
    header, rows = read_table(file)
    cells = np.full((len(rows), len(header)), np.nan)
    stands = np.zeros(cells.shape, bool)
    for i, row in enumerate(rows):
        for j, cell in enumerate(row[: len(header)]):
            if cell:
                stands[i, j], cells[i, j] = _number(cell)
    columns = {name: j for j, name in enumerate(header)}
    if STEP not in columns:
        return {}
    steps = cells[:, columns[STEP]]
    known = np.flatnonzero(np.abs(steps) <= LARGEST)  # nan is not
    order = known[np.argsort(steps[known], kind="stable")]
    steps, cells, stands = steps[order], cells[order], stands[order]
    tokens = _tokens(steps, cells[:, columns[TOKENS]]) if TOKENS in columns else np.full(len(steps), np.nan)
    return {
        name: Series(steps[stands[:, j]], tokens[stands[:, j]], cells[stands[:, j], j])
        for name, j in columns.items()
        if name not in ("", STEP, EPOCH) and stands[:, j].any()
    }


def find_runs(pattern: str) -> list[Path]:
    """Return the run folders, those with ``config.yaml`` and ``metrics.csv``, that a glob names, sorted.

    A sweep's folder stands for those of its jobs. A folder that symbolic links make known by several names is there
    once; one that may not be read is not there.

    Args:
        pattern: as the shell's, ``**`` for any depth.

    Raises:
        UsageError: there is none.
    """
    named = {Path(name) for name in glob.glob(pattern, recursive=True)}
    found = named | {job for path in named if os.path.isfile(path / layout.SWEEP) for job in path.glob("*")}
    runs: dict[str, Path] = {}
    for path in sorted(found, key=lambda path: (str(path.absolute()) != os.path.realpath(path), len(path.parts), path)):
        if all(os.path.isfile(path / name) for name in (layout.CONFIG, layout.METRICS_CSV)):
            runs.setdefault(os.path.realpath(path), path)
    if not runs:
        raise UsageError(
            f"study.runs={pattern}: no run folder there (one with {layout.CONFIG} and {layout.METRICS_CSV}, or a "
            "sweep's); give a glob of run folders, in quotes, such as 'runs/*/*'"
        )
    return sorted(runs.values())


def name_runs(records: Sequence[RunRecord]) -> list[str]:
    """Return a short name for each run, no two the same.

    That of its folder, with as many folders above as it takes to tell it from the others; of a folder named by date,
    the name of the configuration and the id; of a job in the folder of a sweep so named, those and its number.
    """
    paths = [record.folder.absolute().parts for record in records]
    names: list[str] = []
    for path, record in zip(paths, records, strict=True):
        count = next(
            (n for n in range(1, len(path)) if sum(other[-n:] == path[-n:] for other in paths) == 1), len(path)
        )
        if count == 1 and (match := DATED.fullmatch(path[-1])):
            names.append(f"{record.config.get('name', 'run')} {match[1]}")
        elif count <= 2 <= len(path) and (match := DATED.fullmatch(path[-2])) and match[2]:
            names.append(f"{record.config.get('name', 'run')} {match[1]}/{path[-1]}")
        else:
            names.append("/".join(path[-count:]))
    names = [name.encode(errors="replace").decode() for name in names]  # a folder's need not be text
    twice = {name for name in names if names.count(name) > 1}
    return [f"{name} ({number})" if name in twice else name for number, name in enumerate(names, start=1)]


def _tokens(steps: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Tokens seen at each row; rows of a validation do not say it, but those of training around them do."""
    known = np.abs(tokens) <= LARGEST
    if not known.any():
        return np.full(len(steps), np.nan)
    # Before the first step, which has number 0, no token was seen.
    return np.interp(steps, np.concatenate([[-1.0], steps[known]]), np.concatenate([[0.0], tokens[known]]))


def _number(cell: str) -> tuple[bool, float]:
    try:
        return True, float(cell)
    except ValueError:
        return False, np.nan


def is_of_first_version(config: Mapping[str, Any]) -> bool:
    """Whether a run's configuration is one of version 0.1.0, which had no group ``model``."""
    return bool(config) and "model" not in config


def _read_json(file: Path) -> dict[str, Any] | None:
    content = read_json(file)
    return content if isinstance(content, dict) else None
