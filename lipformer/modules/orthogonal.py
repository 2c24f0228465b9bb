"""A square linear map that stays orthogonal while it learns."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lipformer.functional.precision import at_least_float32


def orthogonal(linear: nn.Linear) -> nn.Linear:
    """Make the weight of a square linear map orthogonal, at first a random such matrix; see :class:`Cayley`.

    ``linear.weight`` is from then on computed; its parameter is ``linear.parametrizations.weight.original``.
    """
    nn.init.orthogonal_(linear.weight)
    parametrize.register_parametrization(linear, "weight", Cayley(linear.weight.detach()))
    return linear


LARGEST = 100.0
"""Largest entry of W; with larger ones the linear system would be singular up to rounding, and Q not orthogonal."""


class Cayley(nn.Module):
    r"""An orthogonal matrix near a given one, from any square matrix W.

    .. math:: Q = Q_0\, (I - A)^{-1} (I + A), \qquad A = \tfrac12 (L - L^\top)

    with L the part of W below its diagonal, its entries kept within `LARGEST`; the rest of W is not used. Q has the
    determinant of Q_0, and reaches all matrices that have it but those near -1 in some plane. Computed at least in
    float32, whatever autocast says: orthogonal to its rounding, or to that of W's precision where it is coarser.

    Args:
        base: Q_0, orthogonal; a buffer.

    References: Helfrich, Willmott, Ye 2018, arXiv 1707.09520 (Cayley's transform in learning).
    """

    def __init__(self, base: Float[Tensor, "D D"]):
        super().__init__()
        self.base: Tensor
        self.register_buffer("base", base.clone())

    def forward(self, weight: Float[Tensor, "D D"]) -> Float[Tensor, "D D"]:
        """Return Q, in the precision of W."""
        with torch.autocast(weight.device.type, enabled=False):
            lower = at_least_float32(weight).tril(-1).clamp(-LARGEST, LARGEST)
            skew = (lower - lower.mT) / 2
            one = torch.eye(len(skew), dtype=skew.dtype, device=skew.device)
            turn, _ = torch.linalg.solve_ex(
                one - skew, one + skew
            )  # never singular, so the check, for which a GPU would wait, is left out
            return (self.base.to(turn.dtype) @ turn).to(weight.dtype)

    @torch.no_grad()
    def right_inverse(self, matrix: Float[Tensor, "D D"]) -> Float[Tensor, "D D"]:
        """Take an orthogonal matrix as Q_0, and return the W = 0 that leaves it as it is."""
        self.base.copy_(matrix)
        return torch.zeros_like(matrix)
