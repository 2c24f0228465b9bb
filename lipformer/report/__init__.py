"""The local report: one HTML file that shows runs, and needs neither account nor network."""

from collections.abc import Sequence
from pathlib import Path

from lipformer.runs.record import RunRecord
from lipformer.system.atomic import replace_text


def write_report(records: Sequence[RunRecord], file: Path) -> Path:
    """Write a report of one run or several, all at once: a reader finds the old file or the new one, whole.

    Args:
        records: of the runs, at least one.
        file: where to.

    Returns:
        `file`.

    Raises:
        WriteError: the file cannot be written.
    """
    from lipformer.report.page import render  # imports Bokeh, which training has no use for

    text = render(records, folder=file.parent)
    replace_text(file, text, errors="replace")
    return file
