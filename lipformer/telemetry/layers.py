"""What enters and leaves each layer for one batch, and how wide it spreads."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lipformer.functional.eval_mode import eval_mode
from lipformer.functional.precision import at_least_float32

TRUNK = "trunk"
QUANTILES = (0.01, 0.5, 0.99)
RANGE = ("min", "q01", "q50", "q99", "max", "std")


@dataclass(frozen=True)
class Passage:
    """A module's first argument and its output."""

    module: Any
    x: Tensor
    y: Tensor


@contextmanager
def watching(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, Passage]]:
    """Yield a dictionary that fills, by name, with what passes through the modules while the context lasts."""
    passed: dict[str, Passage] = {}

    def record(name: str) -> Any:
        def hook(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
            passed[name] = Passage(module, arguments[0], output)

        return hook

    handles = [module.register_forward_hook(record(name)) for name, module in modules.items()]
    try:
        yield passed
    finally:
        for handle in handles:
            handle.remove()


def watched_layers(model: Any) -> dict[str, nn.Module]:
    """Return blocks, their residuals, and of these the branches, by their names in the model."""
    layers: dict[str, nn.Module] = {}
    for number, block in model.blocks.named_children():
        layers[f"blocks.{number}"] = block
        for part, residual in block.named_children():
            layers[f"blocks.{number}.{part}"] = residual
            if hasattr(residual, "branch"):
                layers[f"blocks.{number}.{part}.branch"] = residual.branch
    return layers


@torch.no_grad()
def pass_through(model: Any, ids: Int[Tensor, "B N"]) -> dict[str, Passage]:
    """Run the trunk in eval mode, uncompiled, and return what passed each of `watched_layers`, and ``trunk`` itself.

    Args:
        model: a ``CharTransformer``; it is left in the mode it was in.
        ids: sentences of equal length; padding would be measured too.
    """
    with eval_mode(model), watching(watched_layers(model)) as passed:
        embedded = model.embed(ids)
        features = model.trunk(embedded)
    return {**passed, TRUNK: Passage(model.trunk, embedded, features)}


@torch.no_grad()
def range_statistics(passed: Mapping[str, Passage]) -> dict[str, Float[Tensor, ""]]:
    r"""Return ``<layer>/<quantity>`` of blocks, residuals and trunk: spread of input and output, and their ratios.

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
        residual = hasattr(passage.module, "branch")
        block = name.startswith("blocks.") and name.count(".") == 1
        if not (residual or block or name == TRUNK):
            continue
        ends = {"input": spread(passage.x), "output": spread(passage.y)}
        found.update({f"{name}/{end}_{part}": value for end, parts in ends.items() for part, value in parts.items()})
        widths = [parts["max"] - parts["min"] for parts in ends.values()]
        found[f"{name}/range_ratio"] = widths[1] / widths[0]
        found[f"{name}/std_ratio"] = ends["output"]["std"] / ends["input"]["std"]
        if residual and f"{name}.branch" in passed:
            added = passed[f"{name}.branch"].y * getattr(passage.module, "branch_scale", 1.0)
            found[f"{name}/branch_gain"] = _rms(added) / _rms(passage.x)
    return found


def _spread(x: Tensor) -> dict[str, Tensor]:
    entries = at_least_float32(x).flatten()
    ordered = entries.sort().values  # nan last, so that max and the upper quantile show it
    middle = [ordered[round(q * (len(ordered) - 1))] for q in QUANTILES]
    return dict(zip(RANGE, (ordered[0], *middle, ordered[-1], entries.std(correction=0)), strict=True))


def _rms(x: Tensor) -> Tensor:
    return at_least_float32(x).square().mean().sqrt()
