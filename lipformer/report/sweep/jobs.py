"""The jobs of a sweep, read for its report: of each as much as the report shows, and read again only once changed."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from lipformer.errors import UsageError
from lipformer.report.sweep.rows import MEASURED
from lipformer.report.thinning import POINTS, thin
from lipformer.runs import layout
from lipformer.runs.readings import best_score
from lipformer.runs.record import RunRecord, Series, read_record
from lipformer.runs.sweep import read_jobs
from lipformer.runs.swept import SweptJob

READ = (layout.CONFIG, layout.STATUS, layout.METRICS_CSV, layout.METRICS_JSON, layout.CERTIFICATE)
"""The files of a run folder that the report of a sweep depends on."""
MOST_KEPT = 2_000
"""The largest number of jobs that are kept in memory, some 50 kB each."""


def read_swept(sweep: Path) -> list[SweptJob]:
    """Read the jobs of a sweep.

    A job whose folder cannot be read is there with what the sweep itself knows of it.

    Raises:
        UsageError: the sweep's plan is damaged.
    """
    found = []
    for job in read_jobs(sweep):
        read = _read(job.folder, _stamp(job.folder))
        if read is None:
            found.append(SweptJob(job))
        else:
            found.append(SweptJob(job, replace(read.record, outcome=job.outcome), read.numbers))
    return found


@dataclass(frozen=True)
class _Read:
    """What is kept of a run folder: a record with the series of the losses alone, thinned out, and its numbers."""

    record: RunRecord
    numbers: Mapping[str, Any]


@lru_cache(maxsize=MOST_KEPT)
def _read(folder: Path, stamp: tuple[tuple[int, int] | None, ...]) -> _Read | None:
    """Read a run folder; `stamp` tells one state of it from another. None if there is nothing that can be read."""
    if not any(stamp):
        return None
    try:
        record = read_record(folder)
        numbers = {measured.name: measured.read(record) for measured in MEASURED}
    except UsageError:  # removed in the meantime
        return None
    except Exception:  # a file of unknown origin may cause any error; the job itself is shown all the same
        return None
    losses = (record.task.metric("train"), record.task.metric("val"))
    series = {name: _thinned(record.series[name]) for name in losses if name in record.series}
    metrics = record.metrics | {f"best/{losses[1]}": best_score(record)}
    return _Read(replace(record, series=series, metrics=metrics, samples=None, certificate=None), numbers)


def _stamp(folder: Path) -> tuple[tuple[int, int] | None, ...]:
    """Return modification time and size of each file that the report depends on."""
    found: list[tuple[int, int] | None] = []
    for name in READ:
        try:
            told = os.stat(folder / name)
        except OSError:
            found.append(None)
        else:
            found.append((told.st_mtime_ns, told.st_size))
    return tuple(found)


def _thinned(series: Series) -> Series:
    kept = thin(series.values, POINTS)
    return Series(series.steps[kept], series.tokens[kept], series.values[kept])
