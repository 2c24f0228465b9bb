"""Tables and progress bars in the terminal, or in a file or pipe that the output goes to."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress

T = TypeVar("T")

WIDE = 10_000
"""Width in columns if the output is not a terminal: no line is folded, because a folded path cannot be searched for."""
BAD = "bold red"
"""Style of what a reader should notice: a run that did not end well, a number that is not finite."""
STATUS_STYLES = {
    "running": "blue",
    "finished": "green",
    "pruned": "cyan",
    "diverged": BAD,
    "failed": BAD,
    "interrupted": "yellow",
    "terminated": "yellow",
    "killed": BAD,
}
"""Style of a run's status."""


def wide_console() -> Console:
    """Return a console as wide as the terminal, or `WIDE` if there is none."""
    return Console(width=None if sys.stdout.isatty() else WIDE)


def tracked(items: Iterable[T], doing: str, show_progress: bool) -> Iterator[T]:
    """Yield the items, with a progress bar in the terminal.

    Args:
        items: the items; the bar shows their number if it is known.
        doing: what is done with them, a word such as "searching", shown beside the bar.
        show_progress: whether to show the bar.
    """
    with Progress(transient=True) if show_progress else nullcontext() as progress:
        yield from progress.track(items, description=doing) if progress else items
