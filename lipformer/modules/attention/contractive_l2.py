"""Tied L2 attention divided by an upper bound of its own Lipschitz constant."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lipformer.bounds import theorems
from lipformer.functional import spectral
from lipformer.functional.heads import split_outputs
from lipformer.functional.precision import at_least_float32
from lipformer.functional.spectral import Norm, parse_norm
from lipformer.modules.attention.length import check_length
from lipformer.modules.attention.tied_l2 import TiedL2Attention
from lipformer.modules.dropout import ContractiveDropout


class ContractiveL2Attention(TiedL2Attention):
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
    (docs/results.md). x + f(x) is invertible whichever norm it is.

    Args:
        width: features of a token, D.
        heads: H, must divide D.
        context: N, the longest sequence accepted.
        causal: whether token i attends to tokens 0..i only (itself always).
        dropout: probability of dropping an entry of the output, contractive in both modes
            (:class:`~lipformer.modules.dropout.ContractiveDropout`).
        fused: whether ``forward`` uses ``scaled_dot_product_attention`` by default.
        columns: columns of W_h in units of D/H.
        locality: as for :class:`TiedL2Attention`.
        p: "mixed", 2 or ``math.inf``.
        scale: the Lipschitz constant left, in (0, 1). Its distance from 1 also covers the rounding of the
            forward pass, which no theorem about real numbers does.

    Raises:
        ValueError: as for :class:`TiedL2Attention`; unknown ``p``; ``scale`` outside (0, 1); in
            ``forward``, a sequence longer than ``context``.

    References: Kim, Papamakarios, Mnih 2021 (p = inf), arXiv 2006.04710. The mixed norm is ours.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        context: int,
        causal: bool = True,
        dropout: float = 0.0,
        fused: bool = True,
        columns: int = 1,
        locality: float | None = None,
        p: Norm | str = "mixed",
        scale: float = 0.97,
    ):
        super().__init__(width, heads, context=context, causal=causal, fused=fused, columns=columns, locality=locality)
        if not 0 < scale < 1:
            raise ValueError(f"scale must be in (0, 1), not {scale}")
        self.dropout = ContractiveDropout(dropout)
        self.p, self.scale = parse_norm(p), scale

    @property
    def longest_input(self) -> int:
        """Tokens beyond which the constant would not be valid: ``context``."""
        return self.context

    def forward(self, x: Float[Tensor, "*batch N D"], *, fused: bool | None = None) -> Float[Tensor, "*batch N D"]:
        """Attend; ``fused=False`` is the explicit form, differentiable to any order."""
        check_length(x.shape[-2], self.context)
        return super().forward(x, fused=fused)

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

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """Upper bound on the constant of f: at most ``scale`` in the layer's own norm, whatever it is in others.

        Of the weights that the forward pass uses, divided as it divides them. Arguments as in
        :meth:`TiedL2Attention.lipschitz_bound`; ``length`` above ``context`` is a ``ValueError``.
        """
        check_length(self.context if length is None else length, self.context)
        return super().lipschitz_bound(p, length)

    def contraction_bound(self) -> Float[Tensor, ""]:
        """The bound in the norm ``p``, in which the layer contracts."""
        return self.lipschitz_bound(self.p)

    def _certified_maps(self) -> Tensor:
        return self.value_maps().double()
