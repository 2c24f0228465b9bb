"""Which keys of the root a model reads: what it is built of, what may be typed, and what its runs store."""

from collections.abc import Iterable, Mapping
from typing import Any

from lipformer.errors import UsageError
from lipformer.options import Options
from lipformer.options.model import MODEL_GROUPS, MODEL_SCALARS, ModelOptions

ALWAYS_READ = "context"
"""The corpus reads it too, whatever the model."""


def value_of(group: Options | Mapping[str, Any], key: str) -> Any:
    """Return a value of a group with a schema (a dataclass once it is validated) or without (a dictionary)."""
    return group.get(key) if isinstance(group, Mapping) else getattr(group, key, None)


def keys_read(model: ModelOptions | Mapping[str, Any]) -> list[str]:
    """Return the keys and groups of the root that a model reads.

    Args:
        model: the group, as an object or as plain containers.

    Raises:
        UsageError: it does not say so, or names another key.
    """
    known = (*MODEL_SCALARS, *MODEL_GROUPS)
    keys = value_of(model, "reads")
    if not isinstance(keys, list) or not all(key in known for key in keys):
        raise UsageError(f"model.reads={keys}: it must be a list, of {', '.join(known)}")
    return keys


def refuse_unread(model: ModelOptions | Mapping[str, Any], typed: Iterable[str]) -> None:
    """Refuse a typed group that the model does not read; scalars may stand for the other models of a sweep.

    Args:
        model: the group.
        typed: keys and groups of the overrides.

    Raises:
        UsageError: the first such key.
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
    """Return a plain configuration without what its model does not read: a run says only what it is made of."""
    kept = {*keys_read(config["model"]), ALWAYS_READ}
    return {key: value for key, value in config.items() if key in kept or key not in (*MODEL_SCALARS, *MODEL_GROUPS)}
