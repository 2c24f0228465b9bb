"""The report of a sweep: its jobs as a table in CSV and as a page to look at, and figures of the same."""

from pathlib import Path

from lipformer.report.sweep.jobs import read_swept
from lipformer.report.sweep.rows import columns_of, csv_names, csv_rows
from lipformer.runs import layout
from lipformer.runs.metrics_csv import write_rows
from lipformer.system.atomic import replace_text

__all__ = ["write_sweep_report"]


def write_sweep_report(sweep: Path, into: Path | None = None, *, figures: bool = True) -> list[Path]:
    """Write ``sweep.csv``, ``sweep.html`` and ``figures/`` of a sweep, in whatever state it is.

    Only text of the run folders is read, and of a job whose files have not changed since the last call in this process
    nothing is read again. Each file is replaced whole.

    Args:
        sweep: the folder of the sweep.
        into: the folder to write to; that of the sweep if None.
        figures: whether to draw the figures.

    Returns:
        The files written.

    Raises:
        UsageError: the folder holds a plan that is damaged.
        WriteError: a file cannot be written.
    """
    from lipformer.report.sweep.page import render  # imports Bokeh

    into = sweep if into is None else into
    jobs = read_swept(sweep)
    columns = columns_of(jobs)
    table, page = into / layout.SWEEP_CSV, into / layout.SWEEP_PAGE
    write_rows(table, csv_names(columns), csv_rows(columns))
    replace_text(page, render(jobs, columns, sweep, into), errors="replace")
    written = [table, page]
    if figures:
        from lipformer.figures import draw_sweep  # imports Matplotlib

        written += draw_sweep(jobs, into / layout.FIGURES)
    return written
