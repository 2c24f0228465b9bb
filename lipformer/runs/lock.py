"""The lock of a run folder: which process the run is, so that a reader can tell whether it still goes."""

import json
import os
import socket
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lipformer.errors import UsageError
from lipformer.runs.layout import LOCK
from lipformer.system.atomic import naming

BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Process:
    """A process, told from every other there is or was.

    Attributes:
        pid: its id, which another process may get after it.
        host: name of the machine.
        boot: id of the machine's start, where the system has one; ids of processes begin anew with it.
        space: within which `pid` counts: a container has a space of its own. Empty where the system has none.
        started: when the process began, as the system counts it.
    """

    pid: int
    host: str
    boot: str
    space: str
    started: str

    def is_alive(self) -> bool | None:
        """Whether the process still goes; None where that cannot be known from here."""
        here = this_process()
        if self.host != here.host:
            return None
        if self.boot != here.boot:
            return False
        if self.space != here.space or not here.started:
            return None
        started = _started(self.pid)
        return None if not started and _is_hidden(self.pid) else started == self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def this_process() -> Process:
    """Return what tells this process from all others."""
    boot = BOOT.read_text().strip() if BOOT.is_file() else ""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return Process(os.getpid(), socket.gethostname(), boot, space, _started(os.getpid()))


def take_lock(folder: Path) -> None:
    """Make this process the one whose run `folder` holds.

    Raises:
        UsageError: another process has been faster.
        WriteError: the file cannot be written.
    """
    file = folder / LOCK
    with naming(file):
        try:
            with file.open("x", encoding="utf-8") as stream:
                json.dump(asdict(this_process()), stream)
        except FileExistsError as error:
            holder = lock_holder(folder) or "another process"
            raise UsageError(f"the run folder {folder} is in use by {holder}: choose another") from error


def release_lock(folder: Path) -> None:
    """Give up the lock, once ``status.json`` says how the run ended."""
    (folder / LOCK).unlink(missing_ok=True)


def lock_holder(folder: Path) -> Process | None:
    """Return the process that has, or had when it died, the lock of a run folder; None where there is none."""
    try:
        told: Any = json.loads((folder / LOCK).read_text(encoding="utf-8"))
        fields = {name: told[name] for name in Process.__annotations__}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    whole = all(type(fields[name]) is kind for name, kind in Process.__annotations__.items())
    return Process(**fields) if whole else None


def _is_hidden(pid: int) -> bool:
    """Whether a process is there and another user's: a system may show each user their own alone (``hidepid``)."""
    try:
        os.kill(pid, 0)  # sends nothing
    except PermissionError:
        return True
    except (OSError, OverflowError):
        pass
    return False


def _started(pid: int) -> str:
    """When a process began; empty where there is none with this id, and for one that has ended but is not forgotten."""
    try:
        # The name of the program, in parentheses, may hold anything.
        state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]
    except (OSError, ValueError, IndexError):
        pass
    if BOOT.is_file():  # Linux: there is no such process
        return ""
    try:
        command = ["ps", "-o", "lstart=", "-p", str(pid)]
        told = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, check=False)
        return told.stdout.strip()
    except OSError:
        return ""
