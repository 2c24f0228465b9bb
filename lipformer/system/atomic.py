"""Atomic replacement of files, and errors that name the file.

If the process is killed while it writes, the machine loses power or the disk is full, the old file remains, unchanged.
The new content is written beside the old file, so it also works where the temporary folder is on another file system.
"""

import contextlib
import errno
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from lipformer.errors import LipformerError, WriteError

NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.EBADF}
"""Error numbers of systems that cannot flush a folder to the disk."""


def part_of(file: Path) -> Path:
    """Return the temporary file in which this process writes the new content of `file`."""
    return file.with_name(f".{file.name}.{os.getpid()}.part")


def is_part(file: Path) -> bool:
    """Return whether a file is by its name one that a process was writing (`part_of`)."""
    return file.name.startswith(".") and file.name.endswith(".part")


def remove_parts(folder: Path, process: int) -> None:
    """Remove the temporary files that a process left in a folder and those below it when it was killed.

    Args:
        folder: where it wrote.
        process: its id; it has to be gone, and to have been the only one of this id that wrote there.
    """
    for part in folder.rglob(f".*.{process}.part"):
        with contextlib.suppress(OSError):  # it is only in the way
            part.unlink()


@contextlib.contextmanager
def replacing(file: Path, mode: str = "wb", *, previous: Path | None = None, **options: Any) -> Iterator[IO[Any]]:
    """Open a temporary file beside `file` for writing, and replace `file` by it when the block ends.

    The content is flushed to the disk before it gets its name. If the block or the writing fails, `file` is unchanged
    and the temporary file is removed.

    Args:
        file: the file to replace or create; its folder must exist.
        mode: mode of the new file, ``"wb"`` or ``"w"``.
        previous: the name under which the old file is kept; None to discard it. `file` exists at every moment, unless
            the file system has no hard links.
        options: further options of `open`: ``encoding``, ``errors``, ``newline``.

    Raises:
        WriteError: the file cannot be written.
    """
    beside = part_of(file)
    try:
        with naming(file):
            with open(beside, mode, **options) as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            if previous is not None:
                _keep(file, previous)
            os.replace(beside, file)
            _sync_folder(file.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def _keep(file: Path, previous: Path) -> None:
    """If `file` exists, make `previous` a second name of it or, without hard links, rename it."""
    link = part_of(previous)
    with contextlib.suppress(FileNotFoundError):
        try:
            os.link(file, link)
        except FileNotFoundError:
            raise
        except OSError:
            os.replace(file, previous)
        else:
            os.replace(link, previous)
            link.unlink(missing_ok=True)  # replacing one name of a file by another name of the same file does nothing


@contextlib.contextmanager
def making(folder: Path) -> Iterator[Path]:
    """Make a temporary folder beside `folder`, and give it that name when the block ends.

    The files in it are flushed to the disk before. If the block fails, nothing is left of the temporary folder. At no
    moment is there a folder of that name with some of the files only.

    Args:
        folder: it must not exist, or be empty; folders above it are made.

    Raises:
        WriteError: it cannot be made, or there is a folder of that name that is not empty.
    """
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        with naming(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            beside.mkdir()
            yield beside
            for file in beside.iterdir():
                with file.open("rb+") as stream:
                    os.fsync(stream.fileno())
            _sync_folder(beside)
            os.rename(beside, folder)  # the system refuses a folder that is not empty
            _sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def copy_whole(file: Path, new: Path) -> None:
    """Replace or create `new` by the content of `file`, as `replacing` does.

    Args:
        file: the file to copy.
        new: the copy; its folder must exist.

    Raises:
        WriteError: the copy cannot be written.
    """
    with file.open("rb") as original, replacing(new) as copy:
        shutil.copyfileobj(original, copy)


def replace_text(file: Path, text: str, errors: str = "strict") -> None:
    """Replace the content of `file` by `text`, in UTF-8, as `replacing` does.

    Args:
        file: the file to replace or create.
        text: the new content.
        errors: what to do with characters that UTF-8 cannot encode, as in `str.encode`.

    Raises:
        WriteError: the file cannot be written.
    """
    with replacing(file, "w", encoding="utf-8", errors=errors) as stream:
        stream.write(text)


@contextlib.contextmanager
def naming(file: Path) -> Iterator[None]:
    """Turn system errors in the block into a `WriteError` that names `file`, because that of a full disk names none.

    torch hides the system error of a file behind another one, which has it as its cause or context.

    Raises:
        WriteError: the block raised an `OSError`, or an error caused by one.
    """
    handled = sys.exception()  # an error that is being handled already is not one of this file
    try:
        yield
    except LipformerError:
        raise
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and cause is not handled:
            if isinstance(cause, OSError):
                raise WriteError(f"{file} cannot be written: {cause.strerror or cause}{_remedy(cause)}") from error
            cause = cause.__cause__ or cause.__context__
        raise


def _remedy(error: OSError) -> str:
    full = error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None))
    return "; make room, what was there before is whole" if full else ""


def _sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to the disk, if the system can."""
    try:
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise
