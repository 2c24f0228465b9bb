"""Read a run folder into plain data, without torch, while the run goes on or after it has ended."""

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
from lipformer.runs.environment import Environment, read_environments
from lipformer.runs.metric_names import OLD_LAYERS, OLD_MODELS, TOKENS, named_today
from lipformer.runs.metrics_csv import EPOCH, STEP, read_table
from lipformer.runs.outcome import Outcome, read_outcome
from lipformer.runs.plain_files import read_config, read_json
from lipformer.tasks import Task, task_of

LARGEST = 2**53
"""The largest step or number of tokens that a float counts exactly; larger ones are taken as unknown."""
DATED = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_\d+-(\w+)(-sweep)?")
"""Default names of folders; of these a reader is shown the id, not the date."""


@dataclass(frozen=True)
class Series:
    """One metric over the course of a run, in the rows that have it.

    Attributes:
        steps: (rows,), as in the column ``step``, never falling.
        tokens: (rows,), tokens seen up to each step, interpolated between the rows that have it.
        values: (rows,), which may be inf or nan.
    """

    steps: np.ndarray
    tokens: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class RunRecord:
    """The contents of a run folder that are text.

    Attributes:
        folder: the run folder.
        config: ``config.yaml``; empty if it cannot be read, like the following ones.
        outcome: how the run ended, or that it is running (`read_outcome`); None if the folder does not say.
        metrics: ``metrics.json``.
        series: the columns of ``metrics.csv``.
        samples: ``samples.json``, or None.
        certificate: ``certificate.json``, or None.
        environments: ``environment.json``, the last one last.
    """

    folder: Path
    config: dict[str, Any]
    outcome: Outcome | None
    metrics: dict[str, Any]
    series: dict[str, Series]
    samples: dict[str, Any] | None
    certificate: dict[str, Any] | None
    environments: tuple[Environment, ...] = ()

    @property
    def task(self) -> Task:
        """The task of the run, which names its metrics."""
        return task_of(self.config)

    @property
    def status(self) -> str:
        """The status of the run, as in `Outcome`; ``running`` if the folder does not say."""
        return self.outcome.status if self.outcome else "running"


def read_record(folder: Path) -> RunRecord:
    """Read a run folder, whatever its state.

    A run that is running, that was killed within a row, or that is of a version without some of the files is read as
    far as possible; what is missing or broken is left out. Metrics and layers of older runs get their names of today.

    Raises:
        UsageError: there is no such folder.
    """
    if not os.path.isdir(folder):  # unlike is_dir, this is no error if access is denied
        raise UsageError(f"{folder}: no such run folder")
    config = read_config(folder / layout.CONFIG)
    old_names = has_old_layer_names(config)
    name = named_today if old_names else str
    return RunRecord(
        folder=folder,
        config=config,
        outcome=read_outcome(folder),
        metrics={name(metric): value for metric, value in (_read_json(folder / layout.METRICS_JSON) or {}).items()},
        series={name(metric): series for metric, series in read_series(folder / layout.METRICS_CSV).items()},
        samples=_read_json(folder / layout.SAMPLES),
        certificate=_read_certificate(folder / layout.CERTIFICATE, old_names),
        environments=tuple(read_environments(folder)),
    )


def tasks_of(records: Sequence[RunRecord]) -> list[Task]:
    """Return the tasks of the runs, each once."""
    return list(dict.fromkeys(record.task for record in records))


def read_series(file: Path) -> dict[str, Series]:
    """Read the columns of ``metrics.csv``; empty if there is no such file, or no complete row in it."""
    header, rows = read_table(file)
    columns = {name: j for j, name in enumerate(header)}
    if STEP not in columns:
        return {}
    steps = np.array([_number(row[columns[STEP]])[1] if len(row) > columns[STEP] else np.nan for row in rows])
    known = np.flatnonzero(np.abs(steps) <= LARGEST)  # false for nan
    order = known[np.argsort(steps[known], kind="stable")]
    # Only the cells that stand are kept: a table of all of them can be far larger than the file.
    places: dict[int, list[int]] = {}
    cells: dict[int, list[float]] = {}
    for place, i in enumerate(order):
        for j, cell in enumerate(rows[i][: len(header)]):
            stands, number = _number(cell) if cell else (False, np.nan)
            if stands:
                places.setdefault(j, []).append(place)
                cells.setdefault(j, []).append(number)
    steps, tokens = steps[order], np.full(len(order), np.nan)
    if (known_in := columns.get(TOKENS, -1)) in places:
        tokens[places[known_in]] = cells[known_in]
    tokens = _tokens(steps, tokens)
    return {
        name: Series(steps[places[j]], tokens[places[j]], np.array(cells[j]))
        for name, j in columns.items()
        if name not in ("", STEP, EPOCH) and j in places
    }


def find_runs(pattern: str) -> list[Path]:
    """Return the run folders, those with ``config.yaml`` and ``metrics.csv``, that a glob names, sorted.

    The folder of a sweep stands for those of its jobs. A folder that has several names by symbolic links is returned
    once; one that may not be read is left out.

    Args:
        pattern: a glob as in the shell, with ``**`` for any depth.

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


def find_sweeps(pattern: str) -> list[Path]:
    """Return the folders of sweeps that a glob names, sorted; see `find_runs`."""
    return sorted(Path(name) for name in glob.glob(pattern, recursive=True) if os.path.isfile(Path(name, layout.SWEEP)))


def name_runs(records: Sequence[RunRecord]) -> list[str]:
    """Return a short name for each run, no two the same.

    It is the name of its folder, with as many parent folders as it takes to tell it from the others. For a folder named
    by date it is the ``name`` of the configuration and the id; for a job of a sweep, these and the number of the job.
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
    # A folder's name may hold bytes that are no text.
    names = [name.encode(errors="replace").decode() for name in names]
    twice = {name for name in names if names.count(name) > 1}
    return [f"{name} ({number})" if name in twice else name for number, name in enumerate(names, start=1)]


def _tokens(steps: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Return the tokens seen at each row; where a row does not have them, they are interpolated."""
    known = np.abs(tokens) <= LARGEST
    if not known.any():
        return np.full(len(steps), np.nan)
    # Before the first step, which is number 0, no token was seen.
    return np.interp(steps, np.concatenate([[-1.0], steps[known]]), np.concatenate([[0.0], tokens[known]]))


def _number(cell: str) -> tuple[bool, float]:
    try:
        return True, float(cell)
    except ValueError:
        return False, np.nan


def has_old_layer_names(config: Mapping[str, Any]) -> bool:
    """Return whether a configuration is of a run whose metrics name layers as in `OLD_LAYERS`.

    Version 0.1.0 had no group ``model``; after it, the class of a model of ours stood at another place.
    """
    model = config.get("model")
    target = model.get("_target_") if isinstance(model, Mapping) else None
    return (bool(config) and "model" not in config) or target in OLD_MODELS


def _read_certificate(file: Path, old_names: bool) -> dict[str, Any] | None:
    """Return a certificate, its layers named as today, or None."""
    told = _read_json(file)
    rows = told.get("rows") if told else None
    if told is None or not old_names or not isinstance(rows, list):
        return told
    return {**told, "rows": [_named_row(row) for row in rows]}


def _named_row(row: Any) -> Any:
    name = row.get("name") if isinstance(row, dict) else None
    return {**row, "name": OLD_LAYERS[name]} if isinstance(name, str) and name in OLD_LAYERS else row


def _read_json(file: Path) -> dict[str, Any] | None:
    content = read_json(file)
    return content if isinstance(content, dict) else None
