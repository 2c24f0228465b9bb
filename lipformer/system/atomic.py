"""Files that are there whole or as they were: atomic replacement, and errors that name the file.

A process that is killed while it writes, a machine that loses power and a disk that fills leave the file that was there
before. So does a temporary folder on another file system, because the new content is written beside its place.
"""

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from lipformer.errors import LipformerError, WriteError

NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.EBADF}
"""What systems answer that cannot flush a folder to the disk."""


@contextlib.contextmanager
def replacing(file: Path, mode: str = "wb", *, previous: Path | None = None, **options: Any) -> Iterator[IO[Any]]:
    """Open a file beside `file` to be written, and put it in the place of `file` when the block has ended.

    The content is on the disk before it gets its name. Where the block or the writing fails, `file` stays as it was,
    and nothing else is left.

    Args:
        file: to be replaced, or made; its folder must exist.
        mode: of the new file, ``"wb"`` or ``"w"``.
        previous: the name that the replaced file gets; None to drop it. `file` is there all the time, unless the file
            system has no hard links.
        options: of `open`: ``encoding``, ``errors``, ``newline``.

    Raises:
        WriteError: the file cannot be written.
    """
    beside = file.with_name(f".{file.name}.{os.getpid()}.part")
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
    """Give the content of `file` the name `previous` too; without hard links, that name alone. No file is no error."""
    link = previous.with_name(f".{previous.name}.{os.getpid()}.part")
    with contextlib.suppress(FileNotFoundError):
        try:
            os.link(file, link)
        except FileNotFoundError:
            raise
        except OSError:
            os.replace(file, previous)
        else:
            os.replace(link, previous)
            link.unlink(missing_ok=True)  # two names of one file are not replaced by each other


def replace_text(file: Path, text: str, errors: str = "strict") -> None:
    """Replace the content of `file` by `text`, in UTF-8, as `replacing` does.

    Args:
        file: to be replaced, or made.
        text: the new content.
        errors: what becomes of characters that UTF-8 does not have, as in `str.encode`.

    Raises:
        WriteError: the file cannot be written.
    """
    with replacing(file, "w", encoding="utf-8", errors=errors) as stream:
        stream.write(text)


@contextlib.contextmanager
def naming(file: Path) -> Iterator[None]:
    """Turn the system's errors in the block into a `WriteError` of `file`: a full disk does not say by itself where.

    torch reports an error of the file it writes to as another one, which came about while the first was handled.

    Raises:
        WriteError: the block raised an `OSError`, or an error with one behind it.
    """
    handled = sys.exception()  # if the block runs because of an error, that one is not of the file
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
    """Flush a folder's names to the disk, where the system can."""
    try:
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise
