"""How metrics are named: the groups, layers and totals that stand in their names, in one place.

A metric of a layer is ``<group>/<layer>/<quantity>``, one of the whole run ``<group>/<quantity>``. The quantities are
those of `lipformer.runs.quantities`; the objective of a task is named by `lipformer.tasks`.
"""

TRAIN, VALID = "train", "val"
"""Groups of what is measured of the training steps, and of the validation."""
STABILITY = "stability"
"""The group of what is measured by layers, ``stability/<layer>/<quantity>``."""
CERTIFICATE = "certificate"
"""The group of the upper bounds of Lipschitz constants, ``certificate/<layer>/<p>`` with the norm p."""

TOTAL = "total"
"""In the place of a layer: all parameters, or all layers, together."""
TRUNK = "trunk"
"""In the place of a layer: the map from embedded tokens to features."""
LOGITS = "logits"
"""In the place of a layer: the map from embedded tokens to logits."""
WHOLES = (TRUNK, LOGITS, TOTAL)
"""All names that stand in the place of a layer."""

BLOCK, LAYER, BRANCH, NORM = "block", "layer", "branch", "norm"
"""Kinds of layers: a block, a layer or residual, and the branch and the normalisation of a residual."""

ORDER = (
    ("embedding",),
    ("position",),
    ("blocks",),
    ("final_norm",),
    (TRUNK,),
    ("unembedding",),
    (LOGITS,),
    (TOTAL,),
)
"""First parts of the names of layers, in the order of the model."""

OLD_LAYERS = {"head": "unembedding"}
"""Layers as version 0.1.0 named them, with their names of today."""
OLD_MODELS = ("lipformer.model.CharTransformer", "lipformer.lstm.CharLSTM")
"""The ``_target_`` of the models whose layers had these names, in runs with a group ``model``."""

TOKENS = f"{TRAIN}/tokens"
"""Tokens seen so far: in every row, the horizontal axis that means the same in runs with batches of other sizes."""

PARAMETERS, STEPS, TOKENS_SEEN, SECONDS = "parameters", "steps", "tokens", "seconds"
"""In ``metrics.json``: the number of parameters, and what the whole training took."""
TOKENS_PER_SECOND = "tokens_per_second"
"""In ``metrics.json``: the mean speed of the training."""
TELEMETRY_SECONDS = f"{STABILITY}/seconds"
"""In ``metrics.json``: how much of the time the telemetry took."""


def metric_name(group: str, quantity: str | float, layer: str | None = None) -> str:
    """Return the name of a metric.

    Args:
        group: its first part, such as `STABILITY`.
        quantity: its last part, such as the norm of a certificate.
        layer: the layer that it is of; None for a metric of the whole run.
    """
    return f"{group}/{quantity}" if layer is None else f"{group}/{layer}/{quantity}"


def split_metric(metric: str) -> tuple[str, str | None, str] | None:
    """Return the group, the layer (None for a metric of the whole run) and the quantity; None for any other name."""
    match metric.split("/"):
        case [group, quantity]:
            return group, None, quantity
        case [group, layer, quantity]:
            return group, layer, quantity
    return None


def named_today(metric: str) -> str:
    """Return what a metric of a run with old names is called today."""
    match metric.split("/"):
        case [group, layer, quantity] if layer in OLD_LAYERS:
            return metric_name(group, quantity, OLD_LAYERS[layer])
    return metric


def kind_of(layer: str) -> str:
    """Return what a layer of this name is: one of `WHOLES`, `BLOCK`, `BRANCH` or `NORM`; any other is a `LAYER`."""
    if layer in WHOLES:
        return layer
    match layer.split("."):
        case ["blocks", _]:
            return BLOCK
        case [_, *_, last] if last in (BRANCH, NORM):
            return last
    return LAYER


def layer_place(layer: str) -> tuple[int, list[tuple[int, str]]]:
    """Return the sort key of a layer: layers stand in the order of the model, blocks by number, and totals last."""
    first, _, rest = layer.partition(".")
    place = next((i for i, names in enumerate(ORDER) if first in names), len(ORDER))
    return place, [(int(part), "") if part.isdecimal() and len(part) < 10 else (-1, part) for part in rest.split(".")]
