"""``metrics.csv``: a header, and a row for each time that metrics were logged, with empty cells for all others."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lipformer.system.atomic import replacing

STEP, EPOCH = "step", "epoch"
"""Columns that tell where in the training a row was logged; steps are counted from 0."""


def read_table(file: Path) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows, whatever state the file is in.

    A last line that was not written to its end is left out, and each line is a row of its own: a quote that is not
    closed ends with it.

    Returns:
        Header and rows; both empty if there is no such file. A row may have more or fewer cells than the header.
    """
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return [], []
    whole = text[: text.rfind("\n") + 1].replace("\0", "")
    header, *rows = [_cells(line) for line in whole.splitlines()] or [[]]
    return header, rows


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


def _cells(line: str) -> list[str]:
    """Cells of one line; empty if it is broken."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error:  # a cell of more than 131,072 characters
        return []
