"""A file system of one megabyte, which only root can mount; tests that ask for it are skipped elsewhere."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(name="small_disk")
def disk_of_a_megabyte(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of its own."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts a file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)
