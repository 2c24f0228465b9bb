"""Positions, added to the embedded tokens.

Both kinds are added to x rather than applied to queries and keys alone: rotating only those breaks the bound of
L2 attention.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipformer.functional.spectral import Norm, parse_norm


class LearnedPosition(nn.Module):
    """A learned vector for each position.

    Args:
        context: number of positions; a longer sequence is an error.
        width: features of a token, D.
    """

    caveat = ""

    def __init__(self, context: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(context, width).normal_(std=INIT_STD))

    @property
    def longest_input(self) -> int:
        """Number of positions."""
        return len(self.weight)

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Add a position to each token.

        Raises:
            ValueError: the sequence is longer than the positions.
        """
        n = x.shape[1]
        if n > len(self.weight):
            raise ValueError(f"a sequence of {n} tokens is longer than the {len(self.weight)} learned positions")
        return x + self.weight[:n]

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """One: a translation."""
        return _translation(p)


class SinusoidalPosition(nn.Module):
    r"""Sines and cosines of geometrically spaced wavelengths; any length.

    .. math:: p_{n,2i} = \sin(n \cdot 10000^{-2i/D}), \quad p_{n,2i+1} = \cos(n \cdot 10000^{-2i/D})

    Args:
        context: length for which the table is kept; longer sequences compute theirs.
        width: features of a token, D.

    References: Vaswani et al. 2017, arXiv 1706.03762, sec. 3.5.
    """

    caveat = ""

    def __init__(self, context: int, width: int):
        super().__init__()
        self.table: Tensor
        self.register_buffer("table", sinusoids(context, width), persistent=False)

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Add a position to each token."""
        n, width = x.shape[1:]
        table = self.table[:n] if n <= len(self.table) else sinusoids(n, width).to(self.table)
        return x + table.to(x.dtype)

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """One: a translation."""
        return _translation(p)


INIT_STD = 0.7  # the root mean square of the sinusoids, and about that of the embedded tokens


def sinusoids(length: int, width: int) -> Float[Tensor, "length width"]:
    """The table of `SinusoidalPosition`, computed in float64 and returned in float32."""
    angle = torch.arange(length, dtype=torch.float64)[:, None] * torch.exp(
        -math.log(1e4) * torch.arange(0, width, 2, dtype=torch.float64) / width
    )
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :width].float()


def _translation(p: Norm) -> Tensor:
    parse_norm(p)
    return torch.ones((), dtype=torch.float64)
