"""Configurations and weights of older checkpoints as today's version writes them: the place that knows what changed.

A run keeps the function it was trained with. So a key that its configuration lacks has the value that it stood for
then, which is stated here and need not be today's default; a class that has moved is found at its new place.
"""

import copy
from collections.abc import Mapping
from typing import Any

from lipformer.config import MODEL_GROUPS, MODEL_SCALARS, NO_REGULARIZER, without_partial
from lipformer.config.moved import MOVED

GROUPS: dict[str, dict[str, Any]] = {
    "task": {"name": "language"},
    "model": {"_target_": "lipformer.models.transformer.CharTransformer", "reads": [*MODEL_SCALARS, *MODEL_GROUPS]},
    "embedding": {"_target_": "lipformer.modules.embedding.TokenEmbedding", "filled": 1.0},
    "linear": {"_target_": "lipformer.modules.linear.dense"},
    "regularizer": {"_target_": NO_REGULARIZER},
    "callbacks": {},
}
"""Groups that came later, as they then were."""
KEYS: dict[str, dict[str, Any]] = {"trainer": {"compile": False, "report": True}}
"""Group -> its keys that came later, whatever its class, with the values they stood for."""
CLASS_KEYS: dict[str, dict[str, Any]] = {}
"""Class, at today's place -> options that it gained, with the values they stood for."""
RENAMED: dict[str, dict[str, str]] = {
    "lipformer.training.callbacks.stability.StabilityMonitor": {"dear_every_n_steps": "expensive_every_n_steps"},
}
"""Class, at today's place -> its options by their earlier names, with the names of today."""
WEIGHTS: dict[str, dict[str, str]] = {
    "lipformer.models.transformer.CharTransformer": {"head": "unembedding"},
}
"""Class of a model, at today's place -> its children by their earlier names, with the names of today."""


def as_written_today(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored configuration with the groups, keys and places that today's version expects.

    Args:
        config: the plain configuration found in a checkpoint. What is not of the shape that a configuration has is
            handed on as it is, for whoever checks it.
    """
    # A run that says which groups its model reads has all of them, and no others.
    later = {group: node for group, node in GROUPS.items() if "model" not in config or group not in MODEL_GROUPS}
    today: dict[str, Any] = {**copy.deepcopy(later), **config}
    for group, node in today.items():
        if not isinstance(node, dict):
            continue
        node = {**copy.deepcopy(KEYS.get(group, {})), **without_partial(node)}
        if isinstance(node.get("_target_"), str):
            node = _moved(node)
        elif group == "callbacks":
            node = {name: _moved(child) if isinstance(child, dict) else child for name, child in node.items()}
        today[group] = node
    return today


def rename_weights(checkpoint: Mapping[str, Any]) -> None:
    """Give the weights in a checkpoint, in place, the names that its model has today.

    Args:
        checkpoint: as lipformer writes it. What is not of its shape is left alone, for whoever checks it.
    """
    config, weights = checkpoint["lipformer"]["config"], checkpoint.get("state_dict")
    if not isinstance(config, Mapping) or not isinstance(weights, dict):
        return
    model = as_written_today(config)["model"]
    target = model.get("_target_") if isinstance(model, Mapping) else None
    for then, today in WEIGHTS.get(target, {}).items() if isinstance(target, str) else ():
        for name in [name for name in weights if isinstance(name, str) and name.startswith(f"model.{then}.")]:
            weights[name.replace(f"model.{then}.", f"model.{today}.", 1)] = weights.pop(name)


def _moved(node: dict[str, Any]) -> dict[str, Any]:
    target = node.get("_target_")
    if not isinstance(target, str):
        return node
    target = MOVED.get(target, target)
    renamed = RENAMED.get(target, {})
    node = {renamed.get(key, key): value for key, value in node.items()}
    return {**copy.deepcopy(CLASS_KEYS.get(target, {})), **node, "_target_": target}
