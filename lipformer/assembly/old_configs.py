"""Configurations and weights of older checkpoints, converted to those of today: all that has changed is listed here.

A run keeps the function it was trained with. A key that its configuration lacks therefore gets the value that the older
version used, which is stated here and may differ from today's default.
"""

import copy
from collections.abc import Mapping
from typing import Any

from lipformer.config.moved import OPTIONS, target_today
from lipformer.config.targets import without_partial
from lipformer.config.train import NO_REGULARIZER
from lipformer.options.model import MODEL_GROUPS, MODEL_SCALARS
from lipformer.runs.metric_names import OLD_LAYERS

GROUPS: dict[str, dict[str, Any]] = {
    "task": {"name": "language"},
    "model": {"_target_": "lipformer.models.transformer.CharTransformer", "reads": [*MODEL_SCALARS, *MODEL_GROUPS]},
    "embedding": {"_target_": "lipformer.modules.embedding.TokenEmbedding", "filled": 1.0},
    "linear": {"_target_": "lipformer.modules.linear.dense"},
    "regularizer": {"_target_": NO_REGULARIZER},
    "callbacks": {},
}
"""Groups that version 0.1.0 did not have at first, with the choice that it used instead."""
KEYS: dict[str, dict[str, Any]] = {"trainer": {"compile": False, "report": True, "num_nodes": 1, "strategy": "auto"}}
"""Group -> keys that were added to it, for any class, with the values that were used before."""
CLASS_KEYS: dict[str, dict[str, Any]] = {}
"""Class, by its path of today -> options that were added to it, with the values that were used before."""
WEIGHTS: dict[str, dict[str, str]] = {
    "lipformer.models.transformer.CharTransformer": OLD_LAYERS,
    "lipformer.models.lstm.CharLSTM": OLD_LAYERS,
}
"""Class of a model, by its path of today -> earlier name of a child module -> its name of today."""


def as_written_today(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored configuration with the groups, keys and paths of today.

    Args:
        config: the plain configuration found in a checkpoint. Parts that do not have the form of a configuration are
            returned unchanged; they are checked later.
    """
    # A run with a group `model` has all the groups that its model reads, and no others.
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
    """Rename the weights in a checkpoint, in place, to the names of today.

    Args:
        checkpoint: as lipformer writes it. Parts of another form are left unchanged; they are checked later.
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
    target = target_today(target)
    renamed = OPTIONS.get(target, {})
    node = {renamed.get(key, key): value for key, value in node.items()}
    return {**copy.deepcopy(CLASS_KEYS.get(target, {})), **node, "_target_": target}
