"""``metrics.csv``: a header, and a row for each time that metrics were logged, with empty cells for all others."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lipformer.system.atomic import replacing
from lipformer.system.reading import read_regular

STEP, EPOCH = "step", "epoch"
"""Columns that tell where in the training a row was logged; steps are counted from 0."""
LARGEST = 2**30
"""Bytes of the largest file that is read."""


def read_table(file: Path) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows, whatever state the file is in.

    A last line that was not written to its end is left out. A name in the header may hold line breaks, in quotes; each
    line after the header is a row of its own, so that a quote that is not closed ends with it.

    Returns:
        Header and rows; both empty if there is no such file, or it is no plain file of at most `LARGEST` bytes. A row
        may have more or fewer cells than the header.
    """
    try:
        text = read_regular(file, LARGEST).decode("utf-8", errors="replace")
    except OSError:
        return [], []
    *lines, _unfinished = text.replace("\0", "").split("\n")
    header, used = _header(lines)
    return header, [_cells(line) for line in lines[used:]]


def read_rows(file: Path) -> list[dict[str, str]]:
    """Return the whole rows by the names of their columns; those without a step are left out."""
    header, rows = read_table(file)
    named = [dict(zip(header, row, strict=True)) for row in rows if len(row) == len(header)]
    return [row for row in named if row.get(STEP, "").isdecimal()]


def write_rows(file: Path, names: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    """Replace the file by these rows, all at once.

    Args:
        file: where to.
        names: of the columns, in their order.
        rows: their cells by the names of the columns; a cell that a row lacks is empty.

    Raises:
        WriteError: it cannot be written; the old file is whole.
    """
    with replacing(file, "w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=names)
        writer.writeheader()
        writer.writerows(rows)


def _header(lines: Sequence[str]) -> tuple[list[str], int]:
    """Return the cells of the header, and the number of lines it takes: more than one if a name holds line breaks."""
    quotes = 0
    for count, line in enumerate(lines, start=1):
        quotes += line.count('"')
        if quotes % 2 == 0:
            return _cells("\n".join(lines[:count])), count
    return _cells(lines[0]) if lines else [], 1  # no line closes the quote


def _cells(line: str) -> list[str]:
    """Cells of one line, or of a header of several; empty if it is broken."""
    try:
        return next(csv.reader(io.StringIO(line, newline="")), [])
    except csv.Error:  # a cell of more than 131,072 characters
        return []
