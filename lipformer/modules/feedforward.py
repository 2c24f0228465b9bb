"""The token-wise branch of a block."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipformer import theorems
from lipformer.functional import spectral
from lipformer.functional.spectral import Norm, parse_norm
from lipformer.modules.dropout import ContractiveDropout, Dropout
from lipformer.options.parts import ContractiveFeedForwardOptions, FeedForwardOptions
from lipformer.theorems.compose import compose

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}


class FeedForward(nn.Module):
    r"""Two linear maps with an activation between them, applied to each token by itself.

    .. math:: f(x) = W_2\, a(W_1 x + b_1) + b_2

    Args:
        width: features of a token, D.
        activation, expansion: as in :class:`~lipformer.options.parts.FeedForwardOptions`.
        dropout: probability of dropping a feature of the branch's output.

    Raises:
        ValueError: an option is out of its range, or ``dropout`` outside [0, 1).

    References: Vaswani et al. 2017, arXiv 1706.03762, eq. 2.
    """

    caveat = ""

    def __init__(
        self,
        width: int,
        *,
        activation: str = FeedForwardOptions.activation,
        expansion: int = FeedForwardOptions.expansion,
        dropout: float = 0.0,
    ):
        super().__init__()
        FeedForwardOptions.check(activation=activation, expansion=expansion)
        self.slope = theorems.activation_bound(activation)
        self.expand = nn.Linear(width, expansion * width)
        self.activation = ACTIVATIONS[activation]()
        self.contract = nn.Linear(expansion * width, width)
        self.dropout: Dropout | ContractiveDropout = Dropout(dropout)
        for linear in (self.expand, self.contract):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Map each token by itself."""
        return self.dropout(self.contract(self.activation(self.expand(x))))

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """Product of the constants of the parts; the length does not matter."""
        expand, contract = (theorems.linear_bound(linear.weight, p) for linear in (self.expand, self.contract))
        return compose(expand, self.slope, contract, self.dropout.lipschitz_constant())


class ContractiveFeedForward(FeedForward):
    r"""A feed-forward branch with Lipschitz constant at most ``scale`` < 1 for Euclidean tokens.

    .. math:: f(x) = \text{scale} \cdot \hat W_2\, \tfrac1{a'_{max}} a(\hat W_1 x + b_1) + b_2, \qquad
              \|\hat W\|_2 \le 1

    Each matrix is divided by an upper bound of its 2-norm in each forward pass, and differentiated through.

    Args:
        width: features of a token, D.
        activation, expansion, scale: as in :class:`~lipformer.options.parts.ContractiveFeedForwardOptions`; the
            activation is divided by its largest slope.
        dropout: probability of dropping a feature of the branch's output, contractive in both modes.

    Raises:
        ValueError: as for :class:`FeedForward`.

    References: Behrmann et al. 2019 (i-ResNet), arXiv 1811.00995, sec. 2, with the norm from above instead of by
    power iteration.
    """

    weight_methods = ("factors",)
    """Methods that depend on the parameters alone (`lipformer.modules.contexts.constant_weights`)."""

    def __init__(
        self,
        width: int,
        *,
        activation: str = ContractiveFeedForwardOptions.activation,
        expansion: int = ContractiveFeedForwardOptions.expansion,
        dropout: float = 0.0,
        scale: float = ContractiveFeedForwardOptions.scale,
    ):
        super().__init__(width, activation=activation, expansion=expansion)
        ContractiveFeedForwardOptions.check(scale=scale)
        self.dropout = ContractiveDropout(dropout)
        self.scale = scale
        for linear in (self.expand, self.contract):
            nn.init.orthogonal_(linear.weight)  # all singular values are 1: the division weakens no direction

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Map each token by itself."""
        expand, contract = self.factors()
        hidden = self.activation(nn.functional.linear(x, expand, self.expand.bias))
        return self.dropout(nn.functional.linear(hidden, contract, self.contract.bias))

    def factors(self) -> tuple[Float[Tensor, "E D"], Float[Tensor, "D E"]]:
        """The two matrices as the forward pass uses them, the second times ``scale`` over the largest slope."""
        expand, contract = (spectral.normalise(linear.weight) for linear in (self.expand, self.contract))
        dtype = self.expand.weight.dtype
        return expand.to(dtype), (contract * (self.scale / self.slope)).to(dtype)

    def linear_maps(self) -> dict[str, Tensor]:
        """The matrices as they are used, in ``nn.Linear`` layout."""
        return dict(zip(("expand", "contract"), self.factors(), strict=True))

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """Product of the constants of the parts as they are used; the length does not matter."""
        expand, contract = (theorems.linear_bound(factor, p) for factor in self.factors())
        return compose(expand, self.slope, contract, self.dropout.lipschitz_constant())

    def contraction_bound(self) -> Float[Tensor, ""]:
        """The bound for Euclidean tokens, in which the branch contracts."""
        return self.lipschitz_bound("mixed")


class NoFeedForward(nn.Module):
    """No token-wise branch: it returns zero, so that its residual is the identity followed by the normalisation.

    Args:
        width: features of a token, D.
        dropout: ignored; there is nothing to drop.
    """

    caveat = ""

    def __init__(self, width: int, *, dropout: float = 0.0):
        super().__init__()

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Return zeros."""
        return torch.zeros_like(x)

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """Zero."""
        parse_norm(p)
        return torch.zeros((), dtype=torch.float64)

    def contraction_bound(self) -> Float[Tensor, ""]:
        """Zero."""
        return self.lipschitz_bound()
