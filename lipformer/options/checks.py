"""Checks of the values of options, and the words in which a wrong value is refused."""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Check:
    """A range of values.

    Attributes:
        holds: returns whether a value is in the range; a value of another type may raise `TypeError` or `ValueError`.
        wanted: what a value must be, to be read after "it must be".
    """

    holds: Callable[[Any], bool]
    wanted: str

    def __call__(self, value: Any) -> bool:
        """Return whether `value` is in the range."""
        try:
            return bool(self.holds(value))
        except (TypeError, ValueError):
            return False


def number(
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> Check:
    """Return the check that a value is a finite number within these limits."""
    limits = [
        (words, compare, limit)
        for words, compare, limit in (
            ("above", operator.gt, above),
            ("at least", operator.ge, at_least),
            ("below", operator.lt, below),
            ("at most", operator.le, at_most),
        )
        if limit is not None
    ]

    def holds(value: Any) -> bool:
        finite = not isinstance(value, bool) and math.isfinite(value)
        return finite and all(compare(value, limit) for _, compare, limit in limits)

    return Check(holds, " and ".join(f"{words} {limit}" for words, _, limit in limits) or "a number")


def thread_count() -> Check:
    """Return the check of a number of CPU threads; torch crashes if the system cannot start that many."""
    return number(at_least=1, at_most=4096)


def one_of(*choices: str) -> Check:
    """Return the check that a value is one of these words."""
    return Check(lambda value: isinstance(value, str) and value in choices, f"one of {', '.join(choices)}")


def norm_name() -> Check:
    """Return the check of the name of a norm: "mixed", 2 or inf, the last as a number or a word."""
    return Check(
        lambda value: not isinstance(value, bool) and value in ("mixed", "inf", 2, math.inf), "one of mixed, 2, inf"
    )


def or_null(check: Check, meaning: str = "") -> Check:
    """Return the check that a value passes `check` or is null; `meaning` says what null does, e.g. "for no limit"."""
    return Check(lambda value: value is None or check(value), f"{check.wanted}, or null {meaning}".rstrip())
