"""Fixtures that several test files share."""

import os
from pathlib import Path

import pytest
from browser_pages import running_browser, visiting
from fault_counts import _told_kind, pytest_addoption, pytest_runtest_logreport, pytest_sessionfinish  # noqa: F401
from hypothesis import settings
from programs import start_train, write_text

settings.register_profile("steady", deadline=None, derandomize=True)  # the same cases each time, on a busy machine too
settings.load_profile("steady")


@pytest.fixture(scope="session")
def ptb_dir() -> Path:
    """Folder with the Penn Treebank files; the test is skipped where LIPFORMER_PTB_DIR does not name one."""
    folder = os.environ.get("LIPFORMER_PTB_DIR")
    if not folder:
        pytest.skip("needs the Penn Treebank files: set LIPFORMER_PTB_DIR to their folder")
    return Path(folder)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory) -> Path:
    """Run folder of a tiny model that train.py trained for three steps in another process; tests only read it."""
    folder = tmp_path_factory.mktemp("tiny_run")
    text = write_text(folder / "text.txt", lines=200)
    options = ("position=learned", f"data.train={text}", f"hydra.run.dir={folder / 'run'}")
    process = start_train(*options, folder=folder)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return folder / "run"


@pytest.fixture(scope="module")
def browser():
    with running_browser() as chromium:
        yield chromium


@pytest.fixture
def visit(browser):
    """Opens a file in a page of its own, and holds it to this: no complaint, no dialog, no request but for the file."""
    with visiting(browser) as opened:
        yield opened
