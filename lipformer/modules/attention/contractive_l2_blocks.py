"""Contractive L2 attention on orthogonal head subspaces, without the sqrt(H) of concatenated heads."""

import math
from typing import Unpack

from jaxtyping import Float
from torch import Tensor, nn

from lipformer import theorems
from lipformer.functional import spectral
from lipformer.functional.heads import split_outputs
from lipformer.functional.spectral import Norm
from lipformer.modules.attention.factored_l2 import FactoredL2Arguments, FactoredL2Attention
from lipformer.modules.orthogonal import orthogonal


class ContractiveL2BlocksAttention(FactoredL2Attention):
    r"""L2 self-attention whose heads read and write orthogonal subspaces, contractive in the head-block norm.

    .. math:: f(X) = \frac{\text{scale}}{4c + 1} \sum_h P^h X U_h\, V_h\, U_{\pi(h)}^\top, \qquad
              \|X\|_{block} = \max_{i, h} \|x_i U_h\|_2

    where [U_1, ..., U_H] is orthogonal, the 2-norm of V_h is at most 1, and pi(h) = h + H // 2 (mod H): each head
    writes into another's subspace, so that in a trunk with blank channels it can move what it gathers to where
    nothing else is. In the block norm the heads do not add up, and the sqrt(H) of
    :class:`ContractiveL2DecoupledAttention` is gone; in the mixed norm the constant is at most sqrt(H) times the
    scale, and may exceed 1. x + f(x) is invertible all the same. (With weights in bfloat16 the U_h are orthogonal to
    about 1 % only, which can be more than the default scale leaves: :meth:`contraction_bound` says so.)

    Arguments and errors as for :class:`~lipformer.modules.attention.factored_l2.FactoredL2Attention`.

    References: ours, docs/mathematics.md, 8.
    """

    def __init__(self, width: int, heads: int, **options: Unpack[FactoredL2Arguments]):
        super().__init__(width, heads, **options)
        self.query = orthogonal(nn.Linear(width, width, bias=False))

    def query_maps(self) -> Float[Tensor, "H D d"]:
        """Return the U_h."""
        return split_outputs(self.query.weight, self.heads)

    def factors(self) -> tuple[Float[Tensor, "H D d"], Float[Tensor, "H d d"], Float[Tensor, "D D"]]:
        """U_h, V_h scale / (4c + 1), and the U_pi(h) side by side: O in ``nn.Linear`` layout."""
        query = self.query_maps()
        return query, self.divided_maps(), _side_by_side(self._written(query))

    def drop(self, y: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch N D"]:
        """Apply dropout to the output, in the basis of the heads.

        To drop features would mix the subspaces of the heads and could expand in the block norm; to drop coordinates in
        that basis does not.
        """
        if self.dropout.p == 0 or not self.training:
            return self.dropout(y)
        basis = _side_by_side(self.query_maps()).to(y.dtype)
        return nn.functional.linear(self.dropout(y @ basis), basis)

    def dropout_constant(self, p: Norm) -> Tensor | float:
        """Lipschitz constant of :meth:`drop`."""
        if self.dropout.p == 0 or not self.training:
            return self.dropout.lipschitz_constant()
        basis = _side_by_side(self.query_maps().double())
        return spectral.inf_norm(basis) * spectral.inf_norm(basis.mT) if p == math.inf else spectral.exact(basis) ** 2

    def contraction_bound(self) -> Float[Tensor, ""]:
        """The bound in the block norm, below 1: of the U_h as they are computed, orthogonal up to rounding."""
        query, maps, _ = (factor.double() for factor in self.factors())
        bound = theorems.tied_l2_bound_blocks(query, maps, self._written(query), self.context, slope=self.slope)
        if self.training and self.dropout.p > 0:
            bound = bound * theorems.block_norm(query.mT[:, None] @ query)
        else:
            bound = bound * self.dropout.lipschitz_constant()
        return bound.nan_to_num(nan=math.inf, posinf=math.inf)

    def _written(self, query: Tensor) -> Tensor:
        """Return the U_pi(h)."""
        return query.roll(-(self.heads // 2), 0)


def _side_by_side(query: Float[Tensor, "H D d"]) -> Float[Tensor, "D D"]:
    return query.transpose(0, 1).flatten(1)
