"""Read a UTF-8 text file as lines, or say in one line why it cannot be read."""

import codecs
from pathlib import Path

from lipformer.errors import DataError
from lipformer.system.reading import memory_size, read_regular


def read_lines(path: Path, key: str) -> list[str]:
    r"""Return the lines of a text file, unchanged except that their line ends are removed.

    A line ends at ``\n``, ``\r\n`` or ``\r`` and at nothing else: ``str.splitlines`` would also cut at a form
    feed or at U+2028, which are characters of the text. A byte order mark is not part of the text and
    is left out. The end of the last line does not start another line.

    Args:
        path: the file; a relative path counts from the folder the process was launched in.
        key: the configuration key that named the file, e.g. ``"data.train"``, for messages.

    Raises:
        DataError: no such file, a folder, a pipe or device, unreadable, empty, not UTF-8, or holding a NUL byte.
    """
    if path.is_dir():
        raise DataError(f"{key}={path} is a folder: name a text file in it")
    try:
        raw = read_regular(path, memory_size(), follow=True)
    except FileNotFoundError:
        raise DataError(f"{key}={path} does not exist (looked for {path.absolute()})") from None
    except OSError as error:
        raise DataError(f"{key}={path} cannot be read: {error.strerror or error}") from None
    start = len(codecs.BOM_UTF8) if raw.startswith(codecs.BOM_UTF8) else 0
    try:
        text = raw[start:].decode("utf-8")
    except UnicodeDecodeError as error:
        offset = start + error.start
        raise DataError(
            f"{path} is not UTF-8: byte 0x{raw[offset]:02X} at offset {offset} (line {_line_of(raw, offset)}); "
            "convert it, e.g. by `iconv -f LATIN1 -t UTF-8`"
        ) from None
    if (offset := raw.find(b"\0")) >= 0:
        raise DataError(
            f"{path} is not plain text: NUL byte at offset {offset} (line {_line_of(raw, offset)}); "
            "give a UTF-8 text file"
        )
    lines = _with_newlines(text).split("\n")
    if lines[-1] == "":
        lines.pop()
    if not any(line.strip() for line in lines):
        raise DataError(f"{key}={path} is empty: it needs at least one line with a character")
    return lines


def _with_newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _line_of(raw: bytes, offset: int) -> int:
    return 1 + raw[:offset].replace(b"\r\n", b"\n").replace(b"\r", b"\n").count(b"\n")
