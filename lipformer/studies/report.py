"""Runs beside each other: a page of HTML to look at, and a table in the terminal."""

import logging
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from lipformer.config import EvaluateConfig
from lipformer.report import write_report
from lipformer.report.tables import Column, runs_table
from lipformer.run_record import find_runs, name_runs, read_record
from lipformer.terminal import BAD, STATUS_STYLES, wide_console

log = logging.getLogger(__name__)


def run_report(settings: EvaluateConfig, folder: Path) -> None:
    """Write ``report.html`` of the runs that ``settings.runs`` names into `folder`, and print a row for each.

    The runs are only read: they may still go, and what they lack is left out.

    Args:
        settings: the validated configuration.
        folder: of this evaluation.

    Raises:
        UsageError: there is no run folder.
    """
    assert settings.runs is not None  # as validated
    records = [read_record(path) for path in find_runs(settings.runs)]
    file = write_report(records, folder / "report.html")
    wide_console().print(printed(runs_table(records, name_runs(records))))
    log.info("report of %d runs: %s", len(records), file)


def printed(columns: Sequence[Column]) -> Table:
    """Lay the table of runs out for a terminal, the status and what is not finite in colour."""
    table = Table(title="Runs", caption="nats, bits: best on valid; entropy: at the end, as a share of the largest")
    for column in columns:
        table.add_column(Text(column.title), justify="right" if column.numeric else "left", overflow="fold")
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*(Text(cell.text, style=_style(cell.text)) for cell in row))
    return table


def _style(text: str) -> str:
    return BAD if text in ("inf", "-inf", "nan") else STATUS_STYLES.get(text, "")
