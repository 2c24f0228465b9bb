"""The tables of docs/reliability.md are those of its CSV, and what was lost once was mended and tried again."""

from fault_counts import BEGUN_ANEW, COLUMNS, CSV, PAGE, counts, moments, read, with_tables


def row(**cells):
    return dict.fromkeys(COLUMNS, "") | cells


def test_counting():
    rows = [
        row(fault="SIGKILL", outcome="survived", phase="saving"),
        row(fault="SIGKILL", outcome="survived", phase="start-up", way=BEGUN_ANEW),
        row(fault="SIGKILL", outcome="lost", phase="saving"),
        row(fault="full disk", outcome="not tried"),
    ]
    assert counts(rows).splitlines()[2:] == ["| SIGKILL | 3 | 2 | 1 | 1 |", "| full disk | 0 | 0 |  | 0 |"]
    assert moments(rows).splitlines()[2:] == ["| saving | 2 |", "| start-up | 1 |"]


def test_the_tables_are_those_of_the_csv():
    page, rows = PAGE.read_text(encoding="utf-8"), read(CSV)
    assert with_tables(page, rows) == page
    for lost in (row for row in rows if row["outcome"] == "lost"):
        again = [row for row in rows if (row["fault"], row["trial"]) == (lost["fault"], lost["trial"])]
        assert any(row["outcome"] == "survived" and row["commit"] != lost["commit"] for row in again), lost
