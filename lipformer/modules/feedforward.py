"""The token-wise branch of a block."""

from jaxtyping import Float
from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU}


class FeedForward(nn.Module):
    r"""Two linear maps with an activation between them, applied to each token by itself.

    .. math:: f(x) = W_2\, a(W_1 x + b_1) + b_2

    Args:
        width: features of a token, D.
        activation: ``relu`` or ``gelu``.
        expansion: hidden features as a multiple of `width`.
        dropout: probability of dropping a feature of the branch's output.

    References: Vaswani et al. 2017, arXiv 1706.03762, eq. 2.
    """

    def __init__(self, width: int, *, activation: str = "relu", expansion: int = 4, dropout: float = 0.0):
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation={activation!r}: it must be one of {', '.join(ACTIVATIONS)}")
        self.expand = nn.Linear(width, expansion * width)
        self.activation = ACTIVATIONS[activation]()
        self.contract = nn.Linear(expansion * width, width)
        self.dropout = nn.Dropout(dropout)
        for linear in (self.expand, self.contract):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Map each token by itself."""
        return self.dropout(self.contract(self.activation(self.expand(x))))
