"""Text from files is made harmless to the page, terminal or log that shows it."""

import logging
import sys
import unicodedata

HIDDEN = {"Cc", "Cs"}
"""The Unicode categories of control characters, which include a terminal's escapes, and of surrogates."""
DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
"""The bidirectional classes of characters that change the direction of the text after them."""


def visible(text: str) -> str:
    """Replace characters that act on the text around them by their codes, such as ``\\x1b``; keep newlines and tabs."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_spelled(character) for character in text)


def print_error(line: str) -> None:
    """Print what went wrong to the standard error stream, by `visible`."""
    print(f"error: {visible(line)}", file=sys.stderr, flush=True)


class VisibleFormatter(logging.Formatter):
    """Formats lines of a log by `visible`: they may name what stands in a file of somebody else."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line or lines of a record."""
        return visible(super().format(record))


def _spelled(character: str) -> str:
    acts = unicodedata.category(character) in HIDDEN and character not in "\n\t"
    if not acts and unicodedata.bidirectional(character) not in DIRECTIONS:
        return character
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"
