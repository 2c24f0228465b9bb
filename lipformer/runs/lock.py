"""The lock of a run folder: it names the process of the run, so that a reader can tell whether it is running."""

import contextlib
import functools
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lipformer.errors import UsageError
from lipformer.runs.layout import LOCK
from lipformer.runs.plain_files import read_json
from lipformer.system.atomic import naming, part_of, remove_parts

BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Process:
    """What identifies a process among all that run or ran on any machine.

    Attributes:
        pid: its id, which the system may give to another process later.
        host: the name of the machine.
        boot: the id of the last start of the machine, if the system has one; process ids start again with it.
        space: the namespace of `pid`, which a container has of its own; empty if the system has none.
        started: the time at which the process started, in the system's units.
    """

    pid: int
    host: str
    boot: str
    space: str
    started: str

    def is_alive(self) -> bool | None:
        """Return whether the process is running; None if that cannot be known on this machine."""
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
    """Return the identity of this process, the same as long as it runs, even if its machine gets another name."""
    return _this_process(os.getpid())


@functools.lru_cache(maxsize=1)
def _this_process(pid: int) -> Process:
    return identify(pid)  # after a fork the id is another one


def identify(pid: int) -> Process:
    """Return the identity of a process that runs on this machine, in the namespace of this one."""
    boot = BOOT.read_text().strip() if BOOT.is_file() else ""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return Process(pid, socket.gethostname(), boot, space, _started(pid))


def take_lock(folder: Path) -> None:
    """Lock `folder` for the run of this process; a lock whose process has gone is taken over.

    Parts of files that the process left are removed; it did not come to do so itself.

    Raises:
        UsageError: another process has locked it, or may have: one of another machine, or a broken lock.
        WriteError: the file cannot be written.
    """
    file = folder / LOCK
    with naming(file), _alone(folder):
        if file.exists():
            holder = lock_holder(folder)
            if holder is None or holder.is_alive() is not False:
                raise _in_use(file, holder)
            remove_parts(folder, holder.pid)
            file.unlink()
        _write_lock(file)


def _write_lock(file: Path) -> None:
    """Make the lock with its content at once, so that a kill leaves no broken one."""
    beside = part_of(file)
    try:
        with beside.open("w", encoding="utf-8") as stream:
            json.dump(asdict(this_process()), stream)
            stream.flush()
            os.fsync(stream.fileno())  # a power cut leaves no empty one
        try:
            os.link(beside, file)
        except FileExistsError as error:
            raise _in_use(file, lock_holder(file.parent)) from error
        except OSError:  # no hard links here
            os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)


def _in_use(file: Path, holder: Process | None) -> UsageError:
    where = f"the folder {file.parent} is in use by {holder or 'another process'}"
    if holder is not None and holder.is_alive():
        return UsageError(f"{where}: choose another")
    return UsageError(f"{where}: choose another, or delete {file} if that process has gone")


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes out of the block, on systems that can lock a folder: two may find the same dead lock."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):  # Windows; file systems without locks
            import fcntl

            number = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, number)  # which unlocks it
            fcntl.flock(number, fcntl.LOCK_EX)
        yield


def release_lock(folder: Path, holder: Process | None = None) -> None:
    """Release the lock of this process, after the final ``status.json`` was written; that of another one stays.

    Args:
        folder: the run folder.
        holder: the process whose lock it is, if not of this one; it has gone.
    """
    if holder is not None and holder.is_alive():
        return
    # Nobody takes over the lock of a process that runs; that of one that has gone may change hands meanwhile.
    with contextlib.nullcontext() if holder is None else _alone(folder):
        if lock_holder(folder) == (holder or this_process()):
            (folder / LOCK).unlink(missing_ok=True)


def lock_holder(folder: Path) -> Process | None:
    """Return the process that holds the lock of a run folder, or held it when it was killed; None if there is none."""
    told: Any = read_json(folder / LOCK)
    try:
        fields = {name: told[name] for name in Process.__annotations__}
    except (TypeError, KeyError):
        return None
    whole = all(type(fields[name]) is kind for name, kind in Process.__annotations__.items())
    return Process(**fields) if whole else None


def _is_hidden(pid: int) -> bool:
    """Return whether a process is running but hidden: a system may show each user only their own (``hidepid``)."""
    try:
        os.kill(pid, 0)  # signal 0 only checks that the process exists
    except PermissionError:
        return True
    except (OSError, OverflowError):
        pass
    return False


def _started(pid: int) -> str:
    """Return when a process started; empty if there is none with this id, or only a zombie."""
    try:
        # The name of the program, in parentheses, may contain any character.
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
