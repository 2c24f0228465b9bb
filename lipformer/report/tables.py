"""The tables of the report: the facts of a run, several runs side by side, and certificates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lipformer.assembly.old_configs import as_written_today
from lipformer.runs import layout, quantities
from lipformer.runs.differences import config_differences
from lipformer.runs.metric_names import (
    BRANCH,
    CERTIFICATE,
    LOGITS,
    NORM,
    PARAMETERS,
    SECONDS,
    STEPS,
    TELEMETRY_SECONDS,
    TOKENS,
    TOKENS_PER_SECOND,
    TOKENS_SEEN,
    TRUNK,
    kind_of,
)
from lipformer.runs.quantity import Quantity, Value
from lipformer.runs.readings import best_score, layer_series, read_value
from lipformer.runs.record import RunRecord, tasks_of
from lipformer.tasks import Task

MISSING = "–"
KEYS = 6
"""The largest number of configuration keys that have a column of their own in the table of runs."""
NORMS = {"2": "2-norm", "inf": "inf-norm", "mixed": "mixed norm"}
NO_STATUS = f"it left no {layout.STATUS}: it is still running, or was killed"


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: what is shown.
        number: what the cell is sorted by; None where it is sorted by its text.
    """

    text: str
    number: float | None = None

    @property
    def key(self) -> str:
        """The number as JavaScript spells it; an empty string where there is none."""
        return "" if self.number is None else repr(float(self.number)).replace("inf", "Infinity").replace("nan", "NaN")


@dataclass(frozen=True)
class Column:
    """A column of the table of runs.

    Attributes:
        title: its header.
        cells: one for each run.
        about: an explanation, shown when the pointer rests on the header.
    """

    title: str
    cells: list[Cell]
    about: str = ""

    @property
    def numeric(self) -> bool:
        """Whether the column is sorted by numbers: every cell has one, or nothing to show."""
        return all(cell.number is not None or cell.text == MISSING for cell in self.cells)


@dataclass(frozen=True)
class CertificateTable:
    """The certificate of one run.

    Attributes:
        run: the number of the run.
        of: the norm, and up to which length, or when, it was certified.
        rows: of each layer the name, the kind, the bound, the caveat, and whether it is a part of the row above.
        totals: name and bound of the trunk and of the logits.
    """

    run: int
    of: str
    rows: list[tuple[str, str, Cell, str, bool]]
    totals: list[tuple[str, Cell]]


def short(value: Any) -> Cell:
    """Show a number in four significant digits; what is no number is shown as missing."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return Cell(MISSING)
    if not math.isfinite(value):
        return Cell(str(value), value)
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return Cell(f"{value:.4g}", value)
    digits, exponent = f"{value:.2e}".split("e")
    return Cell(f"{digits}e{int(exponent)}", value)


def whole(value: Any) -> Cell:
    """Show a number without its decimals."""
    cell = short(value)
    return Cell(f"{value:,.0f}", value) if cell.number is not None and abs(value) < 1e15 else cell


def fixed(value: Any) -> Cell:
    """Show a number with four decimals, for losses."""
    cell = short(value)
    return Cell(f"{value:.4f}", value) if cell.number is not None and abs(value) < 1e4 else cell


def facts(record: RunRecord) -> list[tuple[str, str]]:
    """Return the main results of one run: pairs of a label and a value; what is not known is left out."""
    score = best_score(record)
    metrics = record.metrics
    found = [
        *((f"best valid, {m.long}", fixed(None if score is None else m.of(score))) for m in record.task.measures),
        ("steps", whole(steps_of(record))),
        ("tokens", whole(tokens_of(record))),
        ("tokens per second", whole(metrics.get(TOKENS_PER_SECOND))),
        ("parameters", whole(metrics.get(PARAMETERS))),
    ]
    telemetry, seconds = metrics.get(TELEMETRY_SECONDS), metrics.get(SECONDS)
    if isinstance(telemetry, int | float) and isinstance(seconds, int | float) and seconds > 0:
        found.append(("time that telemetry took", Cell(f"{telemetry / seconds:.1%}")))
    return [(what, cell.text) for what, cell in found if cell.text != MISSING]


def runs_table(records: Sequence[RunRecord], names: Sequence[str]) -> list[Column]:
    """Return the columns of the table of runs, which has a row for each run."""
    differing = list(differences_today(records).items())[:KEYS]
    return [
        Column("run", [Cell(name) for name in names]),
        Column("status", [Cell(record.status) for record in records]),
        *(column for task in tasks_of(records) for column in _scores(task, records)),
        *(
            Column(value.title, [short(column_value(record, quantity, value)) for record in records], value.about)
            for quantity in quantities.CATALOGUE
            if (value := quantity.column) is not None
        ),
        Column("steps", [whole(steps_of(record)) for record in records]),
        Column("tokens/s", [whole(record.metrics.get(TOKENS_PER_SECOND)) for record in records]),
        *(
            Column(key.removesuffix("._target_"), [value_cell(key, value) for value in values], key)
            for key, values in differing
        ),
    ]


def differences_today(records: Sequence[RunRecord]) -> dict[str, list[str]]:
    """Return the keys in which configurations differ that are written as today: what has only moved does not differ."""
    return config_differences(
        [replace(record, config=as_written_today(record.config)) if record.config else record for record in records]
    )


def _scores(task: Task, records: Sequence[RunRecord]) -> list[Column]:
    """Return a column for each measure of a task; the cells of runs of another task are empty."""
    scores = [best_score(record) if record.task == task else None for record in records]
    titles = [f"best {task.objective.long} on valid", *(f"the same in {measure.unit}" for measure in task.derived)]
    return [
        Column(measure.unit, [fixed(None if score is None else measure.of(score)) for score in scores], title)
        for measure, title in zip(task.measures, titles, strict=True)
    ]


def certificate_table(record: RunRecord, number: int) -> CertificateTable | None:
    """Return a run's certificate: that of ``certificate.json``, or else the last one that was logged; None without."""
    if record.certificate is not None:
        told = record.certificate
        listed = told.get("rows")
        rows = [
            (
                _row_name(row),
                str(row.get("kind", "")),
                short(bound_of(row.get("bound"))),
                str(row.get("caveat", "")),
                row.get("role") == "part",
            )
            for row in (listed if isinstance(listed, list) else [])
            if isinstance(row, dict)
        ]
        of = f"in the {NORMS.get(str(told.get('p')), told.get('p'))}, up to {told.get('length')} tokens"
        totals = [(str(name), short(bound_of(told.get(name)))) for name in (TRUNK, LOGITS)]
        return CertificateTable(number, of, rows, totals)
    for p, norm in NORMS.items():
        logged = layer_series(record, Quantity(p, norm, group=CERTIFICATE))
        if logged:
            bounds = {layer: short(float(series.values[-1])) for layer, series in logged.items()}
            step = max(int(series.steps[-1]) for series in logged.values())
            totals = [(layer, bounds.pop(layer)) for layer in (TRUNK, LOGITS) if layer in bounds]
            rows = [(layer, "", bound, "", kind_of(layer) in (BRANCH, NORM)) for layer, bound in bounds.items()]
            return CertificateTable(number, f"in the {norm}, as logged at step {step:,}", rows, totals)
    return None


def value_cell(key: str, value: str) -> Cell:
    """Return the cell of a configuration value: of a class its name without the module, of a number the number."""
    if not value:
        return Cell(MISSING)
    if key.endswith("._target_"):
        return Cell(value.rpartition(".")[2])
    try:
        return Cell(value, float(value))
    except ValueError:
        return Cell(value)


def _row_name(row: dict[str, Any]) -> str:
    """Return the name of a row; a part of the row above is named by its last part."""
    name = str(row.get("name", ""))
    return name.rpartition(".")[2] if row.get("role") == "part" else name


def bound_of(value: Any) -> Any:
    """Return a bound of ``certificate.json``, which spells infinity as text."""
    return {"inf": math.inf, "nan": math.nan}.get(value, value) if isinstance(value, str) else value


def steps_of(record: RunRecord) -> Any:
    """Return how many steps a run took so far; None if it does not say."""
    told = record.metrics.get(STEPS)
    if told is not None or not record.series:
        return told
    return 1 + max(int(series.steps[-1]) for series in record.series.values())  # the first step has number 0


def tokens_of(record: RunRecord) -> Any:
    """Return how many tokens a run saw so far; None if it does not say."""
    logged = record.series.get(TOKENS)
    return record.metrics.get(TOKENS_SEEN, None if logged is None else float(logged.values[-1]))


def column_value(record: RunRecord, quantity: Quantity, value: Value) -> Any:
    """Return a run's value in a column; that of a certificate is read from its own file, where there is one."""
    if quantity.group == CERTIFICATE and record.certificate is not None:
        return bound_of(record.certificate.get(value.layer))
    return read_value(record, quantity, value)
