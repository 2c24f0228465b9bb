"""Options as fields of a dataclass, each with its meaning and its check."""

import functools
import numbers
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, get_args, get_type_hints

from lipformer.options.checks import Check

REQUIRED: Any = "???"
"""In place of a default: the option must be given. (It is Hydra's mark of a missing value.)"""


class Fault(NamedTuple):
    """An option, its value, which is out of range, and what it must be."""

    option: str
    value: Any
    wanted: str


def option(default: Any, meaning: str, check: Check | None = None) -> Any:
    """Return a field of an `Options` dataclass; its annotation is the type of the option.

    Args:
        default: the default of the constructor and of the command line; `REQUIRED` for none.
        meaning: one clause, with the unit, and with what null or false stands for.
        check: the range; None if the type is enough.
    """
    metadata = {"meaning": meaning, "check": check}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class Options:
    """Base of the options of one kind of part; each option is a field made by `option`.

    Attributes:
        schema: the path by which a YAML of ``conf/`` names the class in its defaults list, ``/schema/<path>@_here_``;
            empty for a class that is only derived from.
    """

    schema: ClassVar[str] = ""

    @classmethod
    def shipped(cls) -> dict[str, "type[Options]"]:
        """Return the class of each schema among those derived from this one in the modules that are imported."""
        found = {cls.schema: cls} if vars(cls).get("schema") else {}
        for derived in cls.__subclasses__():
            found.update(derived.shipped())
        return found

    @classmethod
    def check(cls, **values: Any) -> None:
        """Check the values of some of the options.

        Raises:
            ValueError: a value is out of its range; the message names it, its value and what it must be.
        """
        for name, value, wanted in cls.faults(values):
            raise ValueError(f"{name}={value}: it must be {wanted}")

    @classmethod
    def faults(cls, values: Mapping[str, Any]) -> Iterator[Fault]:
        """Yield the faults in `values`, of all options or of some; subclasses add checks that need two options."""
        stated = {stated.name: stated for stated in cls.stated()}
        for name, value in values.items():
            check = stated[name].metadata["check"]
            if name in cls._whole_numbers() and value is not None and not _is_whole(value):
                yield Fault(name, value, "a whole number")
            elif check is not None and not check(value):
                yield Fault(name, value, check.wanted)

    @classmethod
    def stated(cls) -> list[Field]:
        """Return the fields made by `option`, in order; other fields are Hydra's, or groups."""
        return [stated for stated in fields(cls) if "meaning" in stated.metadata]

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the default of each option, or `REQUIRED`."""
        return {
            stated.name: stated.default if stated.default_factory is MISSING else stated.default_factory()
            for stated in cls.stated()
        }

    @classmethod
    def meanings(cls) -> dict[str, str]:
        """Return the meaning of each option, with its range."""
        return {
            stated.name: stated.metadata["meaning"]
            + (f" [{stated.metadata['check'].wanted}]" if stated.metadata["check"] else "")
            for stated in cls.stated()
        }

    @classmethod
    @functools.cache
    def _whole_numbers(cls) -> frozenset[str]:
        hints = get_type_hints(cls)
        kinds = {stated.name: {hints[stated.name], *get_args(hints[stated.name])} for stated in cls.stated()}
        return frozenset(name for name, kind in kinds.items() if int in kind and float not in kind)


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


@dataclass
class PartOptions(Options):
    """Options of a class or function that a configuration names."""

    schema = "factory"

    _target_: str = REQUIRED
