"""The linear maps of an attention layer."""

from typing import Any

from torch import Tensor, nn

from lipformer.functional.heads import split_outputs


def projection(inputs: int, outputs: int) -> nn.Linear:
    """Bias-free linear map, Glorot-uniform over the *whole* matrix (all heads together).

    No bias: in queries and keys it cancels from the distances if tied, and no theorem here has one.
    """
    linear = nn.Linear(inputs, outputs, bias=False)
    nn.init.xavier_uniform_(linear.weight)
    return linear


def certified_heads(layer: Any) -> dict[str, Tensor]:
    """Weights of a layer with ``query key value out``, in float64, named and laid out as the theorems want them.

    The first three as (H, D, d), the last as (E, D): matrices of ``x W``.
    """
    heads = {name: getattr(layer, name).weight.double() for name in ("query", "key", "value")}
    return {name: split_outputs(weight, layer.heads) for name, weight in heads.items()} | {
        "out": layer.out.weight.double().mT
    }
