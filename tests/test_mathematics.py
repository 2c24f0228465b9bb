"""docs/mathematics.md names functions, tests and sections that exist, and every theorem's function is in its table."""

import fnmatch
import importlib
import re

import pytest
import test_laws
from laws import KINDS
from programs import ROOT

from lipformer import theorems

PAGE = (ROOT / "docs" / "mathematics.md").read_text()
SECTIONS = {int(n): text for n, text in re.findall(r"^## (\d+)\. (.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)}
TABLE = next(text for text in SECTIONS.values() if text.startswith("Theorem, function, test"))
LINES = [line.strip("|").split("|") for line in TABLE.splitlines() if line.startswith("| ")]
ROWS = [[cell.strip() for cell in cells] for cells in LINES[1:]]
TESTS = {path.name: path.read_text() for path in (ROOT / "tests").glob("test_*.py")}
TEST_NAMES = {name for text in TESTS.values() for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}
LAWS = {law.__name__ for law, _ in test_laws.LAWS}
KIND_NAMES = {kind.name for kind in KINDS}


def names(cell: str) -> list[str]:
    """What a cell has in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def functions(cell: str) -> list[object]:
    """The objects a cell names, the later ones beside the first; AttributeError or ImportError if there are none."""
    found, module = [], None
    for name in names(cell):
        path, _, last = name.rpartition(".")
        module = importlib.import_module(f"lipformer.{path}") if path else module
        found.append(getattr(module, last))
    return found


def test_sections_are_numbered_in_order():
    assert list(SECTIONS) == list(range(len(SECTIONS)))
    assert len(ROWS) > 30


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_names_what_exists(row):
    statement, function, tests = row
    functions(function)
    assert names(tests), "no test"
    for name in names(tests):
        known = name in TESTS or name in LAWS or name in KIND_NAMES or (ROOT / name).is_file()
        assert known or fnmatch.filter(TEST_NAMES, name), name
    for label in re.findall(r"\d+\.\d+", statement.replace("Theorem 3.2", "")):
        section = SECTIONS[int(label.split(".")[0])]
        assert re.search(rf"\*\*(Theorem|Lemma|Proposition|Corollary) {re.escape(label)}\b", section), label


def test_every_theorem_has_a_row():
    listed = [found for row in ROWS for found in functions(row[1])]
    for name in theorems.__all__:
        if name != "MatrixNorm":  # a type
            assert getattr(theorems, name) in listed, name


@pytest.mark.parametrize("folder", ["lipformer", "conf"])
def test_sections_that_code_refers_to_are_about_it(folder):
    references = 0
    for path in (path for kind in ("*.py", "*.yaml") for path in (ROOT / folder).rglob(kind)):
        for numbers in re.findall(r"docs/mathematics\.md, ((?:\d+(?:, | and )?)+)", path.read_text()):
            for number in map(int, re.findall(r"\d+", numbers)):
                references += 1
                assert number in SECTIONS, f"{path}: section {number}"
    assert references > 3


def test_a_docstring_refers_to_the_section_that_names_its_function():
    for name in theorems.__all__:
        text = re.sub(r"\s+", " ", getattr(theorems, name).__doc__ or "") if callable(getattr(theorems, name)) else ""
        for numbers in re.findall(r"docs/mathematics\.md, (\d+(?: and \d+)*)", text):
            sections = [SECTIONS[int(number)] for number in numbers.split(" and ")]
            assert any(f"`{name}`" in section for section in sections), name


def test_names_in_the_text_occur_in_the_code():
    sources = [path for folder in ("lipformer", "tests", "conf", "bench") for path in (ROOT / folder).rglob("*")]
    code = "\n".join(path.read_text() for path in sources if path.suffix in (".py", ".yaml"))
    words = set(re.findall(r"\w+", code)) | {path.stem for path in sources}
    for name in re.findall(r"`([A-Za-z_][\w.]*)`", PAGE):
        assert name.removesuffix(".py").rpartition(".")[2] in words, name
