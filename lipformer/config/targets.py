"""Import what a dotted name in a configuration names. Nothing else in `lipformer.config` can import torch."""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from lipformer.config.moved import OPTIONS, target_today
from lipformer.errors import UsageError


def locate(target: str, key: str) -> Any:
    """Import the object that a ``_target_`` names.

    Raises:
        UsageError: there is no such module or attribute.
    """
    module_name, _, attribute = target.rpartition(".")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        if (today := target_today(target)) != target:
            raise UsageError(f"{key}._target_={target}: it has moved to {today}") from error
        raise UsageError(f"{key}._target_={target}: {error}") from error


def factory(node: Mapping[str, Any], key: str) -> Callable[..., Any]:
    """Return the class or function that a group names, with its options filled in.

    Args:
        node: the group: ``_target_`` and options.
        key: name of the group, for messages.

    Raises:
        UsageError: the target cannot be imported, or does not take one of the options.
    """
    options = {name: value for name, value in node.items() if name != "_target_"}
    target = locate(node["_target_"], key)
    accepted = inspect.signature(target).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
    for name in options:
        if name in OPTIONS.get(node["_target_"], {}):
            raise UsageError(f"{key}.{name}: it is written {OPTIONS[node['_target_']][name]} now")
        if name not in accepted and not takes_any:
            raise UsageError(f"{key}.{name}: {target.__name__} has no such option; it takes {', '.join(accepted)}")
    return functools.partial(target, **options)


def without_partial(node: Any) -> Any:
    """Return a group without Hydra's ``_partial_``, and anything else unchanged."""
    return {key: value for key, value in node.items() if key != "_partial_"} if isinstance(node, dict) else node
