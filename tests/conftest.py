"""Fixtures that several test files share."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def ptb_dir() -> Path:
    """Folder with the Penn Treebank files; the test is skipped where LIPFORMER_PTB_DIR does not name one."""
    folder = os.environ.get("LIPFORMER_PTB_DIR")
    if not folder:
        pytest.skip("needs the Penn Treebank files: set LIPFORMER_PTB_DIR to their folder")
    return Path(folder)
