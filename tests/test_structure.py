"""How the code is cut: lengths of files and functions, one word for one thing, no import that points up."""

import ast
import functools
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "lipformer"
SOURCES = sorted(file for folder in ("lipformer", "bench", "tests") for file in (ROOT / folder).rglob("*.py"))
MOST_LINES_OF_A_FILE, MOST_LINES_OF_A_FUNCTION = 400, 60
RETIRED = re.compile(
    r"(dear\w*|\w*tempered\w*|\w*contractive_?factors\w*|InvertibleNorm|\w*figures_?(of|line))", re.IGNORECASE
)
"""Identifiers of words that gave way to one word for one thing: expensive, factored, normalisation, metrics."""


def parsed(source: str) -> ast.Module:
    return ast.parse(source)


def long_functions(source: str, most: int = MOST_LINES_OF_A_FUNCTION) -> dict[str, int]:
    """Functions with more lines than that, their docstrings not counted."""
    found = {}
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            documented = ast.get_docstring(node, clean=False) is not None
            docstring = first.end_lineno - first.lineno + 1 if documented else 0
            lines = node.end_lineno - node.lineno + 1 - docstring
            if lines > most:
                found[node.name] = lines
    return found


def identifiers(source: str) -> set[str]:
    """All names that a module defines or uses: of variables, attributes, functions, classes, arguments, modules."""
    names = set()
    for node in ast.walk(parsed(source)):
        for field in ("id", "attr", "name", "arg", "module", "asname"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                names.update(value.split("."))
    return names


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_files_and_functions_are_short(file):
    source = file.read_text()
    assert source.count("\n") <= MOST_LINES_OF_A_FILE
    assert long_functions(source) == {}


def test_a_long_function_is_found():
    body = "\n".join("    x = 1" for _ in range(3))
    documented = f'def f():\n    """Two\n    lines."""\n{body}\n'
    assert long_functions(documented, most=4) == {}
    assert long_functions(documented, most=3) == {"f": 4}
    assert long_functions(
        f"class C:\n    async def g(self):\n    {body.strip()}\n".replace("    x", "        x"), most=1
    )


def test_every_package_says_what_it_holds():
    packages = sorted(PACKAGE.rglob("__init__.py"))
    assert len(packages) > 15
    assert [str(file) for file in packages if not ast.get_docstring(parsed(file.read_text()))] == []


def test_words_that_gave_way_are_gone():
    found = {
        str(file.relative_to(ROOT)): sorted(filter(RETIRED.fullmatch, identifiers(file.read_text())))
        for file in PACKAGE.rglob("*.py")
    }
    assert {file: names for file, names in found.items() if names} == {}


def test_a_retired_word_is_found():
    source = "from x.tempered import y as dear_steps\nz.figures_of(InvertibleNorm, ContractiveFactorsOptions=1)"
    retired = set(filter(RETIRED.fullmatch, identifiers(source)))
    assert retired == {"tempered", "dear_steps", "figures_of", "InvertibleNorm", "ContractiveFactorsOptions"}


def named_in_prose(text: str) -> tuple[set[str], set[str]]:
    """The files of the repository, and the objects of the package, that a page names."""
    paths = {match.rstrip(".") for match in re.findall(r"\b(?:lipformer|tests|bench|docs|conf)/[\w./-]+\w", text)}
    objects = {match.rstrip(".") for match in re.findall(r"(?<![\w/.-])lipformer(?:\.[A-Za-z_]\w*)+", text)}
    return paths, objects


def exists(dotted: str) -> bool:
    """Whether a dotted name can be imported, as a module or as something in one."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        return (
            functools.reduce(lambda owner, name: owner and getattr(owner, name, None), parts[count:], found) is not None
        )
    return False


PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_exists(page):
    paths, objects = named_in_prose(page.read_text())
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
    assert [name for name in sorted(objects) if not exists(name)] == []


def test_what_does_not_exist_is_found():
    paths, objects = named_in_prose(
        "see `lipformer/nowhere.py`, tests/laws.py, and `lipformer.models.lstm.CharLSTM` or lipformer.x."
    )
    assert paths == {"lipformer/nowhere.py", "tests/laws.py"}
    assert {name: exists(name) for name in objects} == {"lipformer.models.lstm.CharLSTM": True, "lipformer.x": False}


def contracts() -> list[dict]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def test_every_room_has_a_storey():
    """The contract is exhaustive, so a new room without one fails `make lint`; here it fails `make test` too."""
    (layers,) = [contract for contract in contracts() if contract["type"] == "layers"]
    storeys = {room.strip() for line in layers["layers"] for room in line.split("|")}
    rooms = {
        path.stem for path in PACKAGE.iterdir() if path.name not in ("__init__.py", "__pycache__", "py.typed", "conf")
    }
    assert layers["exhaustive"]
    assert storeys == rooms


def test_the_imports_keep_the_contract(tmp_path):
    """As `make lint` checks; and an import that points up breaks it."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    kept = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert kept.returncode == 0, kept.stdout
    for name in ("lipformer", "pyproject.toml"):
        subprocess.run(["cp", "-r", str(ROOT / name), str(tmp_path / name)], check=True)
    (tmp_path / "lipformer" / "functional" / "up.py").write_text("import lipformer.training.run\n")
    broken = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert broken.returncode == 1
    assert "lipformer.functional is not allowed to import lipformer.training" in broken.stdout
