"""Contractive L2 attention on orthogonal head subspaces, without the sqrt(H) of concatenated heads."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipformer.bounds import theorems
from lipformer.functional import spectral
from lipformer.functional.heads import check_heads, split_outputs
from lipformer.functional.spectral import Norm, parse_norm
from lipformer.functional.tempered import attend, tempered_weights
from lipformer.modules.attention.length import check_length
from lipformer.modules.attention.locality import log_slopes, slopes
from lipformer.modules.dropout import ContractiveDropout
from lipformer.modules.orthogonal import orthogonal


class ContractiveL2BlocksAttention(nn.Module):
    r"""L2 self-attention whose heads read and write orthogonal subspaces, contractive in the head-block norm.

    .. math:: f(X) = \frac{\text{scale}}{4c + 1} \sum_h P^h X U_h\, V_h\, U_{\pi(h)}^\top, \qquad
              \|X\|_{block} = \max_{i, h} \|x_i U_h\|_2

    where [U_1, ..., U_H] is orthogonal, the 2-norm of V_h is at most 1, and pi(h) = h + H // 2 (mod H): each head
    writes into another's subspace, so that in a trunk with blank channels it can move what it gathers to where
    nothing else is. In the block norm the heads do not add up, and the sqrt(H) of
    :class:`ContractiveL2DecoupledAttention` is gone; in the mixed norm the constant is at most sqrt(H) times the
    scale, and may exceed 1. x + f(x) is invertible all the same. (With weights in bfloat16 the U_h are orthogonal to
    about 1 % only, which can be more than the default scale leaves: :meth:`contraction_bound` says so.)

    Args:
        width: features of a token, D.
        heads: H, must divide D.
        context: N, the longest sequence accepted.
        causal: whether token i attends to tokens 0..i only (itself always).
        dropout: probability of dropping an entry of the output, contractive in both modes
            (:class:`~lipformer.modules.dropout.ContractiveDropout`).
        fused: whether ``forward`` uses ``scaled_dot_product_attention`` by default.
        scale: the Lipschitz constant left, in (0, 1).
        temperature: initial tau of all heads, above 0.
        locality: as for :class:`~lipformer.modules.attention.tied_l2.TiedL2Attention`.

    Raises:
        ValueError: ``heads`` does not divide ``width``; ``scale``, ``temperature`` or ``locality`` out of range; in
            ``forward``, a sequence longer than ``context``.

    References: ours, docs/mathematics.md, 8.
    """

    caveat = ""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        context: int,
        causal: bool = True,
        dropout: float = 0.0,
        fused: bool = True,
        scale: float = 0.97,
        temperature: float = 1.0,
        locality: float | None = None,
    ):
        super().__init__()
        check_heads(width, heads)
        if not 0 < scale < 1:
            raise ValueError(f"scale must be in (0, 1), not {scale}")
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature must be above 0, not {temperature}")
        self.heads, self.context, self.causal, self.fused, self.scale = heads, context, causal, fused, scale
        d = width // heads
        self.query = orthogonal(nn.Linear(width, width, bias=False))
        self.value_map = nn.Parameter(torch.eye(d).repeat(heads, 1, 1))
        self.log_slope = log_slopes(locality, heads, causal)
        self.log_temperature = nn.Parameter(torch.full((heads,), math.log(temperature)))
        self.dropout = ContractiveDropout(dropout)

    @property
    def longest_input(self) -> int:
        """Tokens beyond which the constant would not be valid: ``context``."""
        return self.context

    def forward(self, x: Float[Tensor, "*batch N D"], *, fused: bool | None = None) -> Float[Tensor, "*batch N D"]:
        """Attend; ``fused=False`` is the explicit form, differentiable to any order."""
        check_length(x.shape[-2], self.context)
        fused = self.fused if fused is None else fused
        query, maps = self.factors()
        y = attend(
            x, query, maps, self._out(query), self.log_temperature, causal=self.causal, fused=fused, slope=self.slope
        )
        if self.dropout.p == 0 or not self.training:
            return self.dropout(y)
        # A mask of features mixes the heads' subspaces and may expand in the block norm; a mask of coordinates in
        # the basis of the heads does not.
        basis = query.transpose(0, 1).flatten(1).to(y.dtype)
        return nn.functional.linear(self.dropout(y @ basis), basis)

    def attention_weights(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N N"]:
        """Rows of the softmax; each sums to one."""
        return tempered_weights(x, self.factors()[0], self.log_temperature, self.causal, self.slope)

    @property
    def slope(self) -> Float[Tensor, "H"] | None:
        """Penalty of each head on the scores of past tokens, in score per token; None for none."""
        return slopes(self.log_slope)

    def factors(self) -> tuple[Float[Tensor, "H D d"], Float[Tensor, "H d d"]]:
        """U_h, and V_h scale / (4c + 1)."""
        slope = self.slope
        factor = self.scale / theorems.head_constant(self.context, slope)
        maps = spectral.normalise(self.value_map)
        maps = maps * (factor if slope is None else factor[:, None, None]).to(maps.dtype)
        return split_outputs(self.query.weight, self.heads), maps

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """Upper bound on the constant, in float64 and differentiable; at most sqrt(H) ``scale`` in the mixed norm.

        Args:
            p: 2, ``math.inf`` or "mixed". The block norm, in which the layer contracts, is :meth:`contraction_bound`.
            length: N for which the bound holds, shorter ones included; None for ``context``, which it must not exceed.
        """
        p = parse_norm(p)
        length = self.context if length is None else length
        check_length(length, self.context)
        query, maps = (factor.double() for factor in self.factors())
        bound = theorems.tied_l2_bound(query, maps, self._out(query).mT, length, p, self.slope)
        return (bound * self._dropout_constant(query, p)).nan_to_num(nan=math.inf, posinf=math.inf)

    def contraction_bound(self) -> Float[Tensor, ""]:
        """The bound in the block norm, below 1: of the U_h as they are computed, orthogonal up to rounding."""
        query, maps = (factor.double() for factor in self.factors())
        written = query.roll(-(self.heads // 2), 0)
        bound = theorems.tied_l2_bound_blocks(query, maps, written, self.context, slope=self.slope)
        return (bound * self._dropout_constant(query, "block")).nan_to_num(nan=math.inf, posinf=math.inf)

    def _dropout_constant(self, query: Tensor, p: Norm | Literal["block"]) -> Tensor | float:
        if self.dropout.p == 0 or not self.training:
            return self.dropout.lipschitz_constant()
        basis = query.transpose(0, 1).flatten(1)
        if p == "block":
            return theorems.block_norm(query.mT[:, None] @ query)
        return spectral.inf_norm(basis) * spectral.inf_norm(basis.mT) if p == math.inf else spectral.exact(basis) ** 2

    def _out(self, query: Tensor) -> Tensor:
        """The U_pi(h) side by side: O in ``nn.Linear`` layout."""
        return query.roll(-(self.heads // 2), 0).transpose(0, 1).flatten(1)
