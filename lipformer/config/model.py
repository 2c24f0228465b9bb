"""Which keys of the root a model reads. Others may not be typed, and are not stored with its runs."""

from collections.abc import Iterable, Mapping
from typing import Any

from lipformer.errors import UsageError
from lipformer.options import Options
from lipformer.options.model import MODEL_GROUPS, MODEL_SCALARS, ModelOptions

ALWAYS_READ = "context"
"""A key that the corpus reads as well, whatever the model."""


def value_of(group: Options | Mapping[str, Any], key: str) -> Any:
    """Return a value of a group, which is a dataclass if it has a schema, and a dictionary if not."""
    return group.get(key) if isinstance(group, Mapping) else getattr(group, key, None)


def keys_read(model: ModelOptions | Mapping[str, Any]) -> list[str]:
    """Return the keys and groups of the root that a model reads.

    Args:
        model: the group, as an object or as plain containers.

    Raises:
        UsageError: the group does not say which, or names a key that is not one of them.
    """
    known = (*MODEL_SCALARS, *MODEL_GROUPS)
    keys = value_of(model, "reads")
    if not isinstance(keys, list) or not all(key in known for key in keys):
        raise UsageError(f"model.reads={keys}: it must be a list, of {', '.join(known)}")
    return keys


def refuse_unread(model: ModelOptions | Mapping[str, Any], typed: Iterable[str]) -> None:
    """Refuse a typed group that the model does not read. Scalars are accepted: a sweep may have models that read them.

    Args:
        model: the group.
        typed: keys and groups of the overrides.

    Raises:
        UsageError: there is one; the message names the first.
    """
    keys = keys_read(model)
    target = str(value_of(model, "_target_"))
    for key in typed:
        group = key.split(".")[0]
        if group in MODEL_GROUPS and group not in keys:
            raise UsageError(
                f"{key}: the model is {target.rpartition('.')[2]}, which has no {group} (it reads {', '.join(keys)}); "
                f"leave {key} out, or take model=transformer"
            )


def without_unread(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plain configuration without the keys that its model does not read, and without those of a sweep."""
    kept = {*keys_read(config["model"]), ALWAYS_READ}
    left_out = {*MODEL_SCALARS, *MODEL_GROUPS, "sweep"} - kept
    return {key: value for key, value in config.items() if key not in left_out}
