"""Compare runs: a page of HTML, and a table in the terminal."""

import logging
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from lipformer.config import EvaluateConfig
from lipformer.errors import LipformerError, WriteError
from lipformer.report import write_report
from lipformer.report.sweep import write_sweep_report
from lipformer.report.tables import Column, runs_table
from lipformer.runs import layout
from lipformer.runs.record import RunRecord, find_runs, find_sweeps, name_runs, read_record
from lipformer.system.terminal import BAD, STATUS_STYLES, wide_console
from lipformer.system.text import visible

log = logging.getLogger(__name__)


class ReportStudy:
    """``study=report``: compare runs.

    Args:
        runs: a glob of run folders.
    """

    def __init__(self, *, runs: str):
        self.runs = runs

    def run(self, settings: EvaluateConfig, folder: Path) -> None:
        """Write ``report.html`` of the runs into `folder`, and print a row for each.

        With several runs, ``figures/`` is drawn as well, and for a sweep ``sweep.html`` with its table and figures. The
        runs are only read; they may still be running, and files that they lack are left out. A run that cannot be read
        or shown is left out with a warning, so that it does not keep the others from being shown.

        Args:
            settings: the validated configuration.
            folder: the folder of this evaluation.

        Raises:
            UsageError: there is no run folder.
            LipformerError: none of the runs can be shown.
            WriteError: the page cannot be written.
        """
        records = read_runs(find_runs(self.runs))
        file = folder / layout.REPORT
        try:
            write_report(records, file)
        except WriteError:
            raise
        except Exception:
            records = showable(records, folder)
            write_report(records, file)
        wide_console().print(printed(runs_table(records, name_runs(records))))
        log.info("report of %d run%s: %s", len(records), "s" if len(records) > 1 else "", file)
        if len(records) > 1:
            _draw(records, folder / layout.FIGURES)
        _show_sweeps(find_sweeps(self.runs), folder)


def read_runs(folders: Sequence[Path]) -> list[RunRecord]:
    """Read run folders; those that cannot be read are left out.

    Raises:
        LipformerError: none can be read.
    """
    records = []
    for path in folders:
        try:
            records.append(read_record(path))
        except Exception as error:  # a file of unknown origin may cause any error
            _leave_out(path, error)
    return _some(records)


def showable(records: Sequence[RunRecord], folder: Path) -> list[RunRecord]:
    """Return the runs that can be shown by themselves, as a page in `folder` and as a row in the terminal.

    Raises:
        LipformerError: none can be shown.
    """
    from lipformer.report.page import render  # imports Bokeh

    shown = []
    for record in records:
        try:
            render([record, record], folder)
        except Exception as error:
            _leave_out(record.folder, error)
        else:
            shown.append(record)
    return _some(shown)


def _leave_out(path: Path, error: Exception) -> None:
    log.warning(
        "%s: left out, it cannot be shown (%s)", visible(str(path)), visible(f"{type(error).__name__}: {error}")
    )


def _some(records: list[RunRecord]) -> list[RunRecord]:
    if not records:
        raise LipformerError("no run is left that can be shown; the warnings above say why, name others by study.runs=")
    return records


def _draw(records: Sequence[RunRecord], folder: Path) -> None:
    from lipformer.figures import compare_runs  # imports Matplotlib

    try:
        files = compare_runs(records, folder)
    except Exception as error:  # the page is written
        log.warning("no figures: %s", visible(f"{type(error).__name__}: {error}"))
    else:
        log.info("figures of %d runs: %d files in %s", len(records), len(files), folder)


def _show_sweeps(sweeps: Sequence[Path], folder: Path) -> None:
    """Write the report of a sweep, if one is named alone, into the folder of the evaluation; of several, say where."""
    if len(sweeps) == 1:
        try:
            file = write_sweep_report(sweeps[0], folder)[1]
        except Exception as error:  # the page of its runs is written
            log.warning("no report of the sweep: %s", visible(f"{type(error).__name__}: {error}"))
        else:
            log.info("report of the sweep %s: %s", visible(str(sweeps[0])), file)
        return
    for sweep in sweeps:
        if (page := sweep / layout.SWEEP_PAGE).is_file():
            log.info("report of the sweep: %s", visible(str(page)))


def printed(columns: Sequence[Column]) -> Table:
    """Return the table of runs for a terminal; statuses and values that are not finite are coloured."""
    table = Table(title="Runs", caption="nats, bits: best on valid; entropy: at the end, as a share of the largest")
    for column in columns:
        table.add_column(Text(visible(column.title)), justify="right" if column.numeric else "left", overflow="fold")
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*(Text(visible(cell.text), style=_style(cell.text)) for cell in row))
    return table


def _style(text: str) -> str:
    return BAD if text in ("inf", "-inf", "nan") else STATUS_STYLES.get(text, "")
