"""What a value must be, said in one line where it is not."""

import math
from typing import Any

from lipformer.errors import UsageError


def require(condition: bool, key: str, value: Any, wanted: str) -> None:
    """Refuse a value for which `condition` does not hold.

    Raises:
        UsageError: it names the key, the value and what is `wanted`.
    """
    if not condition:
        raise UsageError(f"{key}={value}: it must be {wanted}")


def value_of(group: Any, key: str) -> Any:
    """Return a value of a group with a schema (a dataclass by now) or without (a dictionary)."""
    return group.get(key) if isinstance(group, dict) else getattr(group, key)


def require_one_of(key: str, value: Any, choices: tuple) -> None:
    """Refuse a value that is none of `choices`."""
    require(value in choices, key, value, "one of " + ", ".join(map(str, choices)))


def require_norm(key: str, value: Any) -> None:
    """Refuse what is no name of a norm: "mixed", 2 or inf."""
    known = value == "mixed" or (not isinstance(value, (bool, str)) and value in (2, math.inf))
    require(known, key, value, "one of mixed, 2, inf")
