"""Tied L2 attention divided by an upper bound of its own Lipschitz constant."""

import math
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from lipformer import theorems
from lipformer.functional import spectral
from lipformer.functional.heads import split_outputs
from lipformer.functional.precision import at_least_float32
from lipformer.functional.spectral import Norm, parse_norm
from lipformer.modules.attention.length import NormalisedForContext
from lipformer.modules.attention.tied_l2 import TiedL2Arguments, TiedL2Attention
from lipformer.options.attention import ContractiveL2Options


class ContractiveL2Attention(NormalisedForContext, TiedL2Attention):
    r"""Tied L2 self-attention with Lipschitz constant at most ``scale`` < 1 in a chosen norm.

    .. math:: f(X) = \frac{\text{scale}}{B_p(W^Q, W^V, W^O; N)}\, F(X), \qquad B_p \ge \mathrm{Lip}_p(F)

    F is :class:`TiedL2Attention`, B_p for p = "mixed" ``theorems.tied_l2_bound_mixed`` and for 2 and inf
    the two of Theorem 3.2. N is always ``context``, never the batch's length: else the output would depend
    on padding. B_p is computed in each forward pass, at least in float32 whatever autocast says, with
    2-norms from above, and is differentiated through; it is divided out of the small M_h, not out of
    tokens. Weights whose B_p is zero (or below the root of the smallest normal number, 1e-19 in float32)
    are divided by 1 instead: F is then contractive as it is, and zero-initialised weights still learn.

    The choice of p decides how much of F is left. At width 512, 8 heads, N = 288 and initialisation the
    branch has an rms gain of 1e-7 for inf (the paper's choice), 1e-4 for 2, and 5e-3 for mixed
    (docs/results.md). x + f(x) is invertible whichever norm it is. The distance of ``scale`` from 1 also covers
    the rounding of the forward pass, which no theorem about real numbers does.

    Arguments and errors as for :class:`TiedL2Attention` and
    :class:`~lipformer.options.attention.ContractiveL2Options`; dropout is contractive in both modes, and a sequence
    longer than ``context`` is a ``ValueError``.

    References: Kim, Papamakarios, Mnih 2021 (p = inf), arXiv 2006.04710. The mixed norm is ours.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        p: Norm | str = ContractiveL2Options.p,
        scale: float = ContractiveL2Options.scale,
        **tied: Unpack[TiedL2Arguments],
    ):
        super().__init__(width, heads, **tied)
        ContractiveL2Options.check(p=p, scale=scale)
        self.p, self.scale = parse_norm(p), scale

    def value_maps(self) -> Float[Tensor, "H d v"]:
        """M_h scale / B_p: the whole division happens here, for the fused and the explicit form alike."""
        maps = super().value_maps()
        return maps / self._divisor(maps) * self.scale

    def linear_maps(self) -> dict[str, Tensor]:
        """The projections in ``nn.Linear`` layout, the values divided as they are used."""
        value = at_least_float32(self.value.weight) / self._divisor(super().value_maps()) * self.scale
        return {"query": self.query.weight, "value": value, "out": self.out.weight}

    def _divisor(self, maps: Float[Tensor, "H d v"]) -> Float[Tensor, ""]:
        query, value = (
            split_outputs(at_least_float32(linear.weight), self.heads) for linear in (self.query, self.value)
        )
        out = at_least_float32(self.out.weight).mT
        if self.p == "mixed":
            bound = theorems.tied_l2_bound_mixed(query, maps, out, self.context, spectral.upper, self.slope)
        elif self.p == 2:
            bound = theorems.kim_bound_2(query, value, out, self.context, norm=spectral.upper, slope=self.slope)
        else:
            # Unlike the norms of `upper`, row sums leave no room for their own rounding and that of M_h.
            room = 1 + spectral.product_error(3 * query.shape[-2] + 8, query.dtype)
            bound = theorems.kim_bound_inf(query, value, out, self.context, slope=self.slope) * room
        vanishing = bound <= math.sqrt(torch.finfo(bound.dtype).tiny)
        return torch.where(vanishing, torch.ones_like(bound), bound)

    def contraction_bound(self) -> Float[Tensor, ""]:
        """The bound in the norm ``p``, in which the layer contracts: at most ``scale``."""
        return self.lipschitz_bound(self.p)

    def _certified_maps(self) -> Tensor:
        return self.value_maps().double()
