"""The fingerprint of a text, by which a reader tells whether two runs saw the same one."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

SUM = re.compile("[0-9a-f]{64}")
SHOWN = 12
"""Digits of a sum that a message shows."""


@dataclass(frozen=True)
class Fingerprint:
    """What identifies the lines of a split: their text and order, whatever file they came from.

    Attributes:
        sha256: of the stripped lines in UTF-8, a newline after each. Of a file without blank lines or spaces at the
            ends of lines it is what ``sha256sum`` shows.
        lines: their number, also of those that are dropped for their length.
        tokens: their characters, and one end symbol each.
    """

    sha256: str
    lines: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.lines:,} lines, {self.tokens:,} tokens, sha256 {self.sha256[:SHOWN]}..."


def fingerprint(lines: Sequence[str]) -> Fingerprint:
    """Return the fingerprint of the lines of a split."""
    text = "".join(f"{line}\n" for line in lines)
    sha256 = hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()
    return Fingerprint(sha256, len(lines), len(text))


def to_plain(fingerprints: Mapping[Any, Fingerprint]) -> dict[str, dict[str, Any]]:
    """Return fingerprints as plain containers, by the names of their splits."""
    return {str(split): asdict(each) for split, each in fingerprints.items()}


def from_plain(told: Any) -> dict[str, Fingerprint]:
    """Return the fingerprints that a checkpoint holds; those that are missing or have another form are left out."""
    found = {}
    for split, each in told.items() if isinstance(told, Mapping) else ():
        if not isinstance(each, Mapping):
            continue
        sha256, lines, tokens = (each.get(name) for name in Fingerprint.__annotations__)
        if isinstance(sha256, str) and SUM.fullmatch(sha256) and type(lines) is int and type(tokens) is int:
            found[str(split)] = Fingerprint(sha256, lines, tokens)
    return found


def changed_splits(then: Mapping[str, Fingerprint], now: Mapping[Any, Fingerprint]) -> str:
    """Return in words which splits have another text now, and from which fingerprint to which; empty if none has.

    A split that has no fingerprint on one side is not compared.
    """
    return "; ".join(
        f"{split} was {then[split]}, and is {each}"
        for split, each in now.items()
        if split in then and then[split] != each
    )
