"""Two dropouts that know their Lipschitz constants, the same in every norm that grows with each |entry|."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipformer.options.scalars import ScalarOptions


class Dropout(nn.Dropout):
    r"""Inverted dropout: keep with probability 1 - p and divide by it, so that eval is the identity.

    Args:
        p: probability of dropping an entry, in [0, 1).

    Raises:
        ValueError: p outside [0, 1).

    References: Srivastava et al. 2014, JMLR 15, sec. 10 (the inverted form).
    """

    def __init__(self, p: float = 0.0):
        _check(p)
        super().__init__(p)

    def lipschitz_constant(self) -> float:
        """Return 1 / (1 - p) in train mode, which is above 1 because eval mode has no factor, and 1 in eval mode."""
        return 1 / (1 - self.p) if self.training else 1.0


class ContractiveDropout(nn.Module):
    r"""Dropout that is contractive in both modes.

    .. math:: y = m \odot x \ \text{ in train mode},\ m \in \{0, 1\},\ P(m = 1) = 1 - p;
              \qquad y = (1 - p)\, x \ \text{ in eval mode}

    Args:
        p: probability of dropping an entry, in [0, 1).

    Raises:
        ValueError: p outside [0, 1).

    References: the original form, Srivastava et al. 2014, JMLR 15, sec. 4.
    """

    def __init__(self, p: float = 0.0):
        super().__init__()
        _check(p)
        self.p = p

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Mask the entries (train mode) or scale them (eval mode)."""
        if self.p == 0:
            return x
        if self.training:
            return x * (torch.rand_like(x, dtype=torch.float32) >= self.p)
        return x * (1 - self.p)

    def lipschitz_constant(self) -> float:
        """1 in train mode (a mask may keep everything), 1 - p in eval mode."""
        return 1.0 if self.training else 1 - self.p

    def extra_repr(self) -> str:
        """Show p."""
        return f"p={self.p}"


def _check(p: float) -> None:
    ScalarOptions.check(dropout=p)
