"""The table of a sweep: one row for each job, from which the CSV, the page and the terminal take theirs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lipformer.report.tables import (
    Cell,
    Column,
    bound_of,
    column_value,
    fixed,
    short,
    steps_of,
    tokens_of,
    value_cell,
    whole,
)
from lipformer.runs import quantities
from lipformer.runs.metric_names import LOGITS, PARAMETERS, SECONDS, TOKENS_PER_SECOND
from lipformer.runs.record import RunRecord
from lipformer.runs.swept import SweptJob, swept_keys, values_of
from lipformer.system.text import visible

JOB, STATUS, REASON = "job", "status", "reason"
"""The first columns."""


@dataclass(frozen=True)
class Measured:
    """A column of what runs measured.

    Attributes:
        name: its name in the CSV.
        title: its title in the page.
        read: reads the value from the record of a run; None where the run does not have it.
        show: shows the value.
        about: an explanation.
    """

    name: str
    title: str
    read: Callable[[RunRecord], Any]
    show: Callable[[Any], Cell] = short
    about: str = ""


@dataclass(frozen=True)
class SweepColumn:
    """A column of the table of a sweep.

    Attributes:
        name: its name in the CSV.
        column: its title, cells and explanation for a reader.
        values: the same as the CSV has them.
        kind: ``job``, ``score`` or ``key``, or else ``measured``.
    """

    name: str
    column: Column
    values: list[Any]
    kind: str = "measured"

    @property
    def is_empty(self) -> bool:
        """Whether no job has a value."""
        return all(value in (None, "") for value in self.values)


def _from_metrics(name: str) -> Callable[[RunRecord], Any]:
    return lambda record: record.metrics.get(name)


def _logits(record: RunRecord) -> Any:
    return None if record.certificate is None else bound_of(record.certificate.get(LOGITS))


def _catalogued() -> list[Measured]:
    """Return the columns of the catalogue of quantities."""
    return [
        Measured(
            value.title,
            value.title,
            lambda record, quantity=quantity, value=value: column_value(record, quantity, value),
            about=value.about,
        )
        for quantity in quantities.CATALOGUE
        if (value := quantity.column) is not None
    ]


MEASURED = (
    Measured("steps", "steps", steps_of, whole),
    Measured("tokens", "tokens", tokens_of, whole),
    Measured("seconds", "seconds", _from_metrics(SECONDS), about="of the training"),
    Measured("tokens_per_second", "tokens/s", _from_metrics(TOKENS_PER_SECOND), whole),
    Measured("parameters", "parameters", _from_metrics(PARAMETERS), whole),
    *_catalogued(),
    Measured("certificate_logits", "to logits", _logits, about="Lipschitz constant up to the logits, at most"),
)
"""The columns of what runs measured, in their order."""


def columns_of(jobs: Sequence[SweptJob]) -> list[SweepColumn]:
    """Return the columns of the table of a sweep, with a cell for each job."""
    columns = [
        _texts(JOB, [job.job.name for job in jobs], JOB),
        _texts(STATUS, [job.status for job in jobs]),
        _texts(REASON, [job.job.outcome.reason for job in jobs]),
        *_scores(jobs),
    ]
    taken = {column.name for column in columns} | {measured.name for measured in MEASURED}
    keys = swept_keys([job.job for job in jobs])
    rows = [values_of(job.job, keys) for job in jobs]
    for place, key in enumerate(keys):
        values = [row[place] for row in rows]
        cells = [value_cell(key.name, visible(value or "")) for value in values]
        name = visible(key.name) if key.name not in taken else f"{key.name}="  # a key of ours is never called so
        columns.append(SweepColumn(name, Column(visible(key.name), cells), values, "key"))
    for measured in MEASURED:
        numbers = [_plain(job.numbers.get(measured.name)) for job in jobs]
        column = Column(measured.title, [measured.show(number) for number in numbers], measured.about)
        columns.append(SweepColumn(measured.name, column, numbers))
    return columns


def csv_names(columns: Sequence[SweepColumn]) -> list[str]:
    """Return the header of the CSV."""
    return [column.name for column in columns]


def csv_rows(columns: Sequence[SweepColumn]) -> list[Mapping[str, object]]:
    """Return the rows of the CSV; numbers have all their digits."""
    spelled = [[visible(value) if isinstance(value, str) else value for value in column.values] for column in columns]
    return [dict(zip(csv_names(columns), row, strict=True)) for row in zip(*spelled, strict=True)]


def _texts(name: str, values: Sequence[str], kind: str = "job") -> SweepColumn:
    return SweepColumn(name, Column(name, [_text(value) for value in values]), list(values), kind)


def _text(value: str) -> Cell:
    return Cell(visible(value), float(value) if value.isdecimal() and len(value) < 16 else None)


def _scores(jobs: Sequence[SweptJob]) -> list[SweepColumn]:
    """Return a column for each measure; the cells of jobs whose task does not have it are empty."""
    measures = {measure.name: measure for job in jobs for measure in job.job.task.measures}
    columns = []
    for name, measure in measures.items():
        values = [
            next((one.of(job.score) for one in job.job.task.measures if one.name == name), None)
            if job.score is not None
            else None
            for job in jobs
        ]
        about = f"{measure.long}: of a training the best on valid, of an evaluation that of its split"
        columns.append(SweepColumn(name, Column(measure.unit, [fixed(v) for v in values], about), values, "score"))
    return columns


def _plain(value: Any) -> int | float | None:
    """Return a number, which may be inf or nan; None for anything else that a file may hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if isinstance(value, float) and math.isfinite(value) and value == int(value) else value
