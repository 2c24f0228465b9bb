"""Statistics of the tensors between a model's layers: how wide their entries spread, and what each layer changes."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lipformer.functional.precision import at_least_float32
from lipformer.modules.contexts import eval_mode
from lipformer.modules.contracts import HasTrunk, branch_scale
from lipformer.modules.walk import Passage, Place, walk, watching
from lipformer.runs.metric_names import TRUNK

QUANTILES = (0.01, 0.5, 0.99)
SPREAD = ("min", "q01", "q50", "q99", "max", "std")
"""Statistics of a tensor's entries: extremes, the quantiles above, and the standard deviation."""
BLOCK_LAYERS = ("layer", "residual")
"""Roles of the layers of the blocks."""
COMPARED = ("block", *BLOCK_LAYERS, "other", "trunk")
"""Roles of the places whose output is compared with their input."""


def watched_layers(model: nn.Module) -> list[Place]:
    """Return the places whose inputs and outputs telemetry reads.

    These are the blocks, their layers, the branches of residuals, the final normalisation, and the model's other
    children, such as the network of a model without blocks.
    """
    return [place for place in walk(model) if place.role in (*COMPARED, "branch", "stack", "final_norm")]


@torch.no_grad()
def pass_through(model: nn.Module, ids: Int[Tensor, "B N"]) -> dict[str, Passage]:
    """Run the model up to its features in eval mode, uncompiled, and record what enters and leaves its layers.

    Args:
        model: has ``embed`` and ``trunk``, as a ``CharTransformer`` has; it is left in the mode it was in.
        ids: sentences of equal length; padding would be measured too.

    Returns:
        The passage of each of `watched_layers`, by its name, and of the whole trunk as ``trunk``. A layer that takes
        or returns anything but one tensor of floating-point numbers is left out.

    Raises:
        TypeError: the model has no ``embed`` and ``trunk``.
    """
    if not isinstance(model, HasTrunk):
        raise TypeError(f"{type(model).__name__} has no embed and trunk, between which layers are watched")
    with eval_mode(model), watching(watched_layers(model)) as passed:
        embedded = model.embed(ids)
        features = model.trunk(embedded)
    found = {**passed, TRUNK: Passage(Place(TRUNK, model, "trunk"), embedded, features)}
    return {name: p for name, p in found.items() if p.x.is_floating_point() and p.y.is_floating_point()}


@torch.no_grad()
def range_statistics(passed: Mapping[str, Passage]) -> dict[str, Float[Tensor, ""]]:
    r"""Measure how wide each tensor spreads, and how much wider or narrower each layer makes it.

    Args:
        passed: what `pass_through` returned.

    Returns:
        By name, ``<layer>/<quantity>``:

        - of each tensor of `distinct_tensors`, ``input_`` or ``output_`` followed by ``min q01 q50 q99 max std``, over
          all its entries;
        - of blocks, their layers, other children of the model and the trunk, ``range_ratio``, the output's max - min
          over the input's, and ``std_ratio``, the same of standard deviations;
        - of residuals, ``branch_gain``, the size of what the branch f adds over the size of what it is added to, where
          a is the residual's ``branch_scale``:

        .. math:: \mathrm{rms}(a f(x)) / \mathrm{rms}(x)

    References: Kim et al. 2021, arXiv 2006.04710, appendix on output ranges, for the comparison.
    """
    tensors = distinct_tensors(passed)
    spreads = {id(tensor): _spread(tensor) for tensor in tensors.values()}
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        found.update({f"{name}_{statistic}": value for statistic, value in spreads[id(tensor)].items()})
    for name, passage in passed.items():
        if passage.place.role not in COMPARED:
            continue
        before, after = spreads[id(passage.x)], spreads[id(passage.y)]
        found[f"{name}/range_ratio"] = (after["max"] - after["min"]) / (before["max"] - before["min"])
        found[f"{name}/std_ratio"] = after["std"] / before["std"]
        if f"{name}.branch" in passed:
            added = passed[f"{name}.branch"].y * branch_scale(passage.place.module)
            found[f"{name}/branch_gain"] = _rms(added) / _rms(passage.x)
    return found


def distinct_tensors(passed: Mapping[str, Passage]) -> dict[str, Tensor]:
    """Return each tensor between the embedding and the logits once, as ``<layer>/input`` or ``<layer>/output``.

    The output of a layer is the input of the next one, and that of a block's last layer is the block's. Of the names
    that a tensor could have it gets the first of: ``trunk/input``, the output of a layer of a block, ``trunk/output``
    (of a final normalisation, or of a model without blocks), the output of anything else, an input (of a layer that a
    model of one's own gives something else than the output of the layer before). What passes inside residuals has no
    name here.

    Args:
        passed: what `pass_through` returned.
    """
    places = {name: passage.place for name, passage in passed.items() if passage.place.role != "branch"}
    layers = [name for name, place in places.items() if place.role in BLOCK_LAYERS]
    others = [name for name in places if name not in layers]
    ends = [
        (TRUNK, "input"),
        *((name, "output") for name in (*layers, TRUNK, *others)),
        *((name, "input") for name in (*layers, *others)),
    ]
    named: dict[int, tuple[str, Tensor]] = {}
    for name, end in ends:
        if name in passed:
            tensor = passed[name].x if end == "input" else passed[name].y
            named.setdefault(id(tensor), (f"{name}/{end}", tensor))
    return dict(named.values())


def _spread(x: Float[Tensor, "*shape"]) -> dict[str, Float[Tensor, ""]]:
    """Return the statistics `SPREAD` of all entries together, in float32 at least."""
    entries = at_least_float32(x).flatten()
    ordered = entries.sort().values  # nan last, so that max and the upper quantile show it
    quantiles = [ordered[round(q * (len(ordered) - 1))] for q in QUANTILES]
    return dict(zip(SPREAD, (ordered[0], *quantiles, ordered[-1], entries.std(correction=0)), strict=True))


def _rms(x: Float[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """Return the root of the mean square of all entries."""
    return at_least_float32(x).square().mean().sqrt()
