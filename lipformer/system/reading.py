"""Reading files that others may have written: plain files only, up to a size, and JSON of one meaning only."""

import json
import math
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO


def memory_size() -> int:
    """Return the bytes of memory of this machine: a file that is larger cannot be read as a whole."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def open_regular(file: Path, most: int, *, follow: bool = False) -> BinaryIO:
    """Open a file to read, without waiting for one that nobody writes to, such as a named pipe.

    Args:
        file: the file.
        most: the largest size that is read, in bytes.
        follow: whether the last part of the path may be a symbolic link. In a run folder it may not: what a page or a
            table shows of a folder that somebody sent would then be any file of the reader's.

    Raises:
        OSError: there is no such file, it cannot be read, is larger, or is no plain file: a pipe, a device, a folder,
            a link.
    """
    # Without O_NONBLOCK, the opening of a pipe waits for a writer.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(file, flags)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size <= most:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(f"larger than {most:,} bytes" if stat.S_ISREG(status.st_mode) else "no plain file")


def read_regular(file: Path, most: int, *, follow: bool = False) -> bytes:
    """Return the content of a file; arguments and errors as for `open_regular`."""
    with open_regular(file, most, follow=follow) as stream:
        return stream.read(os.fstat(stream.fileno()).st_size)


def strict_json(text: str | bytes) -> Any:
    """Return what a text of JSON holds, if it has one meaning for all readers.

    Raises:
        ValueError: it is no JSON or not UTF-8, nests too deep, names a key twice, or holds nan, infinity or a number
            beyond the range of floats.
    """
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        return json.loads(decoded, object_pairs_hook=_once, parse_constant=_no_number, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("it nests too deep") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} stands twice")
    return found


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:20]} is beyond the range of numbers")
    return number
