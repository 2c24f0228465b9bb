"""What enters and leaves each layer for one batch, and how wide it spreads."""

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
RANGE = ("min", "q01", "q50", "q99", "max", "std")
SPREAD_ROLES = ("block", "layer", "residual", "other", "trunk")
"""Roles of what has its range measured."""


def watched_layers(model: nn.Module) -> list[Place]:
    """Return blocks and the trunk's layers, of residuals the branches too; of a model without blocks its network."""
    return [place for place in walk(model) if place.role in (*SPREAD_ROLES, "branch")]


@torch.no_grad()
def pass_through(model: nn.Module, ids: Int[Tensor, "B N"]) -> dict[str, Passage]:
    """Run the trunk in eval mode, uncompiled, and return what passed each of `watched_layers`, and ``trunk`` itself.

    Args:
        model: has ``embed`` and ``trunk``, as a ``CharTransformer`` has; it is left in the mode it was in.
        ids: sentences of equal length; padding would be measured too.

    Raises:
        TypeError: the model has no ``embed`` and ``trunk``.
    """
    if not isinstance(model, HasTrunk):
        raise TypeError(f"{type(model).__name__} has no embed and trunk, between which layers are watched")
    with eval_mode(model), watching(watched_layers(model)) as passed:
        embedded = model.embed(ids)
        features = model.trunk(embedded)
    return {**passed, TRUNK: Passage(Place(TRUNK, model, "trunk"), embedded, features)}


@torch.no_grad()
def range_statistics(passed: Mapping[str, Passage]) -> dict[str, Float[Tensor, ""]]:
    r"""Return ``<layer>/<quantity>`` of blocks, layers and trunk: spread of input and output, and their ratios.

    ``input_`` and ``output_`` of ``min q01 q50 q99 max std`` over all entries (std about their mean);
    ``range_ratio``, the output's max - min over the input's; ``std_ratio``; and of a residual ``branch_gain``,

    .. math:: \mathrm{rms}(a f(x)) / \mathrm{rms}(x)

    with what the branch adds, a being the residual's own factor (its ``branch_scale``), over what it is added to.

    References: Kim et al. 2021, arXiv 2006.04710, appendix on output ranges, for the comparison.
    """
    known: dict[int, dict[str, Tensor]] = {}  # the output of a layer is the input of the next

    def spread(x: Tensor) -> dict[str, Tensor]:
        if id(x) not in known:
            known[id(x)] = _spread(x)
        return known[id(x)]

    found: dict[str, Tensor] = {}
    for name, passage in passed.items():
        if passage.place.role not in SPREAD_ROLES:
            continue
        ends = {"input": spread(passage.x), "output": spread(passage.y)}
        found.update({f"{name}/{end}_{part}": value for end, parts in ends.items() for part, value in parts.items()})
        widths = [parts["max"] - parts["min"] for parts in ends.values()]
        found[f"{name}/range_ratio"] = widths[1] / widths[0]
        found[f"{name}/std_ratio"] = ends["output"]["std"] / ends["input"]["std"]
        if f"{name}.branch" in passed:
            added = passed[f"{name}.branch"].y * branch_scale(passage.place.module)
            found[f"{name}/branch_gain"] = _rms(added) / _rms(passage.x)
    return found


def _spread(x: Tensor) -> dict[str, Tensor]:
    entries = at_least_float32(x).flatten()
    ordered = entries.sort().values  # nan last, so that max and the upper quantile show it
    middle = [ordered[round(q * (len(ordered) - 1))] for q in QUANTILES]
    return dict(zip(RANGE, (ordered[0], *middle, ordered[-1], entries.std(correction=0)), strict=True))


def _rms(x: Tensor) -> Tensor:
    return at_least_float32(x).square().mean().sqrt()
