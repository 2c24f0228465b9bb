"""Split the width into heads, for activations and for weights in ``nn.Linear`` layout."""

from jaxtyping import Float
from torch import Tensor


def check_heads(width: int, heads: int) -> None:
    """Raise ``ValueError`` unless the width D can be split into ``heads`` heads of equal size."""
    if heads < 1 or width % heads:
        raise ValueError(f"width {width} is not divisible by heads {heads}")


def split_heads(tokens: Float[Tensor, "*batch N C"], heads: int) -> Float[Tensor, "*batch H N c"]:
    """Split C = H c columns into H heads of c columns each (a view)."""
    return tokens.unflatten(-1, (heads, -1)).transpose(-3, -2)


def merge_heads(tokens: Float[Tensor, "*batch H N c"]) -> Float[Tensor, "*batch N C"]:
    """Undo :func:`split_heads`."""
    return tokens.transpose(-3, -2).flatten(-2)


def split_outputs(weight: Float[Tensor, "C D"], heads: int) -> Float[Tensor, "H D c"]:
    """Matrices W_h, used as ``x W_h``, of an ``nn.Linear`` whose *outputs* are split into heads (a view).

    ``nn.Linear`` stores (out, in), the transpose of the W in ``x W``. Norms that tell rows from columns
    depend on getting this right, so it is done here and nowhere else.
    """
    return weight.unflatten(0, (heads, -1)).mT


def split_inputs(weight: Float[Tensor, "D C"], heads: int) -> Float[Tensor, "H c D"]:
    """Matrices W_h, used as ``y_h W_h``, of an ``nn.Linear`` whose *inputs* are split into heads (a view)."""
    return weight.mT.unflatten(0, (heads, -1))
