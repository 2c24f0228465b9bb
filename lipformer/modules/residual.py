"""How a branch joins the skip connection, and where the norm stands."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn


class PostNorm(nn.Module):
    r"""The norm after the sum, as in the original Transformer and in Kim et al. 2021.

    .. math:: y = \mathrm{norm}(x + f(x))

    Args:
        branch: f, ``(B, N, D) -> (B, N, D)``.
        norm: makes the norm of a given width.
        width: features of a token, D.

    References: Vaswani et al. 2017, arXiv 1706.03762, sec. 3.1.
    """

    normalises_output = True

    def __init__(self, branch: nn.Module, norm: Callable[[int], nn.Module], width: int):
        super().__init__()
        self.branch = branch
        self.norm = norm(width)

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Add the branch, then normalise."""
        return self.norm(x + self.branch(x))


class PreNorm(nn.Module):
    r"""The norm inside the branch; the skip stays untouched from end to end.

    .. math:: y = x + f(\mathrm{norm}(x))

    The model puts one more norm behind the last block.

    Args:
        branch: f, ``(B, N, D) -> (B, N, D)``.
        norm: makes the norm of a given width.
        width: features of a token, D.

    References: Xiong et al. 2020, arXiv 2002.04745, fig. 1b.
    """

    normalises_output = False

    def __init__(self, branch: nn.Module, norm: Callable[[int], nn.Module], width: int):
        super().__init__()
        self.branch = branch
        self.norm = norm(width)

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Normalise, apply the branch, then add it."""
        return x + self.branch(self.norm(x))
