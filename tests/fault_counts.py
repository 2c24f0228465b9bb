"""Counting the trials of the fault suite: a row of docs/data/reliability.csv each, and the tables made of them.

A test marked ``fault("<kind>")`` is a trial: it survived if the test passes. ``pytest -m fault --count-faults=<file>``
writes the rows, in place of those of the same kinds, and the tables of docs/reliability.md.
"""

import csv
import datetime
import os
import platform
import re
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CSV, PAGE = ROOT / "docs" / "data" / "reliability.csv", ROOT / "docs" / "reliability.md"
COLUMNS = ("fault", "trial", "phase", "step", "way", "outcome", "commit", "date", "machine", "seed")
OUTCOMES = {"passed": "survived", "failed": "lost", "skipped": "not tried"}
BEGUN_ANEW = "begun anew"
"""The way of a trial whose run was killed before its first checkpoint, so that there was nothing to be continued."""

_rows: list[dict[str, str]] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--count-faults", type=Path, metavar="FILE", help="count the trials marked `fault` in this CSV")


@pytest.fixture(autouse=True)
def _told_kind(request: pytest.FixtureRequest, record_property) -> None:
    """Write the kind of the fault into the report of its test."""
    if marker := request.node.get_closest_marker("fault"):
        record_property("fault", marker.args[0])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    told = {name: str(value) for name, value in report.user_properties}
    if "fault" in told and (report.when == "call" or (report.when == "setup" and not report.passed)):
        row = dict.fromkeys(COLUMNS, "") | told
        _rows.append(row | {"trial": report.nodeid.rpartition("::")[2], "outcome": OUTCOMES[report.outcome]})


def pytest_sessionfinish(session: pytest.Session) -> None:
    file = session.config.getoption("--count-faults")
    if file is None or not _rows or hasattr(session.config, "workerinput"):
        return
    now = datetime.datetime.now(datetime.UTC)
    where = {"commit": _commit(), "date": f"{now:%Y-%m-%d %H:%M}Z", "machine": _machine()}
    counted = {row["fault"] for row in _rows}
    kept = [row for row in read(file) if row["fault"] not in counted] if file.is_file() else []
    rows = sorted(kept + [row | where for row in _rows], key=lambda row: (row["fault"], row["trial"]))
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    if file.resolve() == CSV:
        PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")


def read(file: Path) -> list[dict[str, str]]:
    """Return the rows of the CSV."""
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def with_tables(page: str, rows: Iterable[dict[str, str]]) -> str:
    """Return the page with the tables of these rows, each in place of what stands after its mark."""
    rows = list(rows)
    for name, table in {"counts": counts(rows), "moments": moments(rows)}.items():
        page, found = re.subn(rf"(<!-- {name} -->\n).*?(<!-- end -->)", rf"\g<1>{table}\g<2>", page, flags=re.S)
        assert found == 1, name
    return page


def counts(rows: Iterable[dict[str, str]]) -> str:
    """Return the table of trials by kind of fault."""
    lines = ["| fault | tried | survived | of these begun anew | lost |", "|---|---|---|---|---|"]
    groups: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault(row["fault"], []).append(row)
    for fault, of_kind in groups.items():
        number = Counter(row["outcome"] for row in of_kind)
        anew = sum(row["way"] == BEGUN_ANEW and row["outcome"] == "survived" for row in of_kind)
        tried = number["survived"] + number["lost"]
        lines.append(f"| {fault} | {tried} | {number['survived']} | {anew or ''} | {number['lost']} |")
    return "\n".join(lines) + "\n"


def moments(rows: Iterable[dict[str, str]]) -> str:
    """Return the table of what runs were doing when they were killed."""
    killed = [row for row in rows if row["phase"] and "SIGKILL" in row["fault"] and row["outcome"] != "not tried"]
    phases = list(dict.fromkeys(row["phase"] for row in killed))
    faults = list(dict.fromkeys(row["fault"] for row in killed))
    number = Counter((row["fault"], row["phase"]) for row in killed)
    lines = [f"| killed during | {' | '.join(faults)} |", f"|---|{'---|' * len(faults)}"]
    lines += [f"| {phase} | {' | '.join(str(number[fault, phase]) for fault in faults)} |" for phase in phases]
    return "\n".join(lines) + "\n"


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--", ".", ":!docs")
    return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")


def _machine() -> str:
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"
