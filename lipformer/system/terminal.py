"""How tables look in the terminal, and in the file or pipe that stands for one."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress

T = TypeVar("T")

WIDE = 10_000
"""Columns where the output is no terminal: as many as a line needs, since a folded path cannot be searched for."""
BAD = "bold red"
"""Style of what a reader is to notice: a run that did not end well, a number that is not finite."""
STATUS_STYLES = {
    "running": "blue",
    "finished": "green",
    "diverged": BAD,
    "failed": BAD,
    "interrupted": "yellow",
    "terminated": "yellow",
    "killed": BAD,
}
"""Style of a run's status."""


def wide_console() -> Console:
    """Return a console as wide as the terminal; `WIDE` where there is none."""
    return Console(width=None if sys.stdout.isatty() else WIDE)


def tracked(items: Iterable[T], doing: str, show_progress: bool) -> Iterator[T]:
    """Pass the items on, beside a bar in the terminal if it is to be shown.

    Args:
        items: of a sized one the number is shown.
        doing: what is done with them, for the reader.
        show_progress: draw the bar.
    """
    with Progress(transient=True) if show_progress else nullcontext() as progress:
        yield from progress.track(items, description=doing) if progress else items
