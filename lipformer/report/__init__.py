"""The local report: one HTML file that shows runs and needs neither an account nor a network."""

from collections.abc import Sequence
from pathlib import Path

from lipformer.runs.record import RunRecord
from lipformer.system.atomic import replace_text


def write_report(records: Sequence[RunRecord], file: Path) -> Path:
    """Write a report of one run or several; a reader finds either the old file or the new one, never a part of it.

    Args:
        records: the runs, at least one.
        file: the file to write.

    Returns:
        `file`.

    Raises:
        WriteError: if the file cannot be written.
    """
    from lipformer.report.page import render  # imports Bokeh, which a training does not need

    text = render(records, folder=file.parent)
    replace_text(file, text, errors="replace")
    return file
