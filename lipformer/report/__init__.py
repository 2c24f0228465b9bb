"""The local report: one HTML file that shows runs, and needs neither account nor network."""

from collections.abc import Sequence
from pathlib import Path

from lipformer.run_record import RunRecord


def write_report(records: Sequence[RunRecord], file: Path) -> Path:
    """Write a report of one run or several, all at once: a reader finds the old file or the new one, whole.

    Args:
        records: of the runs, at least one.
        file: where to.

    Returns:
        `file`.

    Raises:
        OSError: the file cannot be written.
    """
    from lipformer.report.page import render  # imports Bokeh, which training has no use for

    text = render(records, folder=file.parent)
    beside = file.with_name(f".{file.name}.part")
    beside.write_text(text, encoding="utf-8", errors="replace")
    beside.replace(file)
    return file
