"""Contractive L2 attention with a value map, a temperature and a normaliser of its own for each factor."""

import math
from typing import Unpack

from jaxtyping import Float
from torch import Tensor, nn

from lipformer.functional import spectral
from lipformer.functional.heads import split_outputs
from lipformer.modules.attention.factored_l2 import FactoredL2Arguments, FactoredL2Attention


class ContractiveL2DecoupledAttention(FactoredL2Attention):
    r"""L2 self-attention with Lipschitz constant at most ``scale`` < 1 in the mixed norm, each factor normalised.

    .. math:: f(X) = \frac{\text{scale}}{(4c + 1)\sqrt H}\, [P^1 X U_1 V_1, \dots, P^H X U_H V_H]\, O, \qquad
              P^h_{ij} \propto e^{-\tau_h \|x_i U_h - x_j U_h\|_2^2}

    with 2-norms of U_h, V_h and O at most 1: each is a free matrix divided by an upper bound of its norm. A head
    q -> P q has the constant 4c + 1 whatever the temperature, so each learns its own. Kim's layer ties V_h to U_h
    (V = U^T W^V / s) and divides the product by one bound; here nothing is lost to that bound's slack, and at
    initialisation the branch is several times stronger (docs/results.md).

    Arguments and errors as for :class:`~lipformer.modules.attention.factored_l2.FactoredL2Attention`.

    References: ours, docs/mathematics.md, 8; the L2 head is Kim et al.'s, arXiv 2006.04710.
    """

    def __init__(self, width: int, heads: int, **options: Unpack[FactoredL2Arguments]):
        super().__init__(width, heads, **options)
        self.query = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        for linear in (self.query, self.out):
            nn.init.orthogonal_(linear.weight)

    def query_maps(self) -> Float[Tensor, "H D d"]:
        """U_h, as the projection of tokens rounds it."""
        return spectral.normalise(split_outputs(self.query.weight, self.heads)).to(self.query.weight.dtype)

    def factors(self) -> tuple[Float[Tensor, "H D d"], Float[Tensor, "H d d"], Float[Tensor, "D D"]]:
        """U_h, V_h scale / ((4c + 1) sqrt H), and O in ``nn.Linear`` layout."""
        return self.query_maps(), self.divided_maps(math.sqrt(self.heads)), spectral.normalise(self.out.weight)

    def contraction_bound(self) -> Float[Tensor, ""]:
        """The bound in the mixed norm, in which the layer contracts."""
        return self.lipschitz_bound("mixed")
