"""Contractive L2 attention with a value map, a temperature and a normaliser of its own for each factor."""

import math

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


class ContractiveL2DecoupledAttention(nn.Module):
    r"""L2 self-attention with Lipschitz constant at most ``scale`` < 1 in the mixed norm, each factor normalised.

    .. math:: f(X) = \frac{\text{scale}}{(4c + 1)\sqrt H}\, [P^1 X U_1 V_1, \dots, P^H X U_H V_H]\, O, \qquad
              P^h_{ij} \propto e^{-\tau_h \|x_i U_h - x_j U_h\|_2^2}

    with 2-norms of U_h, V_h and O at most 1: each is a free matrix divided by an upper bound of its norm. A head
    q -> P q has the constant 4c + 1 whatever the temperature, so each learns its own. Kim's layer ties V_h to U_h
    (V = U^T W^V / s) and divides the product by one bound; here nothing is lost to that bound's slack, and at
    initialisation the branch is several times stronger (docs/results.md).

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

    References: ours, docs/mathematics.md, 8; the L2 head is Kim et al.'s, arXiv 2006.04710.
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
        self.query = nn.Linear(width, width, bias=False)
        self.value_map = nn.Parameter(torch.eye(d).repeat(heads, 1, 1))
        self.out = nn.Linear(width, width, bias=False)
        self.log_slope = log_slopes(locality, heads, causal)
        self.log_temperature = nn.Parameter(torch.full((heads,), math.log(temperature)))
        self.dropout = ContractiveDropout(dropout)
        for linear in (self.query, self.out):
            nn.init.orthogonal_(linear.weight)

    @property
    def longest_input(self) -> int:
        """Tokens beyond which the constant would not be valid: ``context``."""
        return self.context

    def forward(self, x: Float[Tensor, "*batch N D"], *, fused: bool | None = None) -> Float[Tensor, "*batch N D"]:
        """Attend; ``fused=False`` is the explicit form, differentiable to any order."""
        check_length(x.shape[-2], self.context)
        fused = self.fused if fused is None else fused
        query, maps, out = self.factors()
        mixed = attend(x, query, maps, out, self.log_temperature, causal=self.causal, fused=fused, slope=self.slope)
        return self.dropout(mixed)

    def attention_weights(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N N"]:
        """Rows of the softmax; each sums to one."""
        return tempered_weights(x, self.factors()[0], self.log_temperature, self.causal, self.slope)

    @property
    def slope(self) -> Float[Tensor, "H"] | None:
        """Penalty of each head on the scores of past tokens, in score per token; None for none."""
        return slopes(self.log_slope)

    def factors(self) -> tuple[Float[Tensor, "H D d"], Float[Tensor, "H d d"], Float[Tensor, "D D"]]:
        """U_h, V_h scale / ((4c + 1) sqrt H), and O in ``nn.Linear`` layout."""
        slope = self.slope
        factor = self.scale / (theorems.head_constant(self.context, slope) * math.sqrt(self.heads))
        query = spectral.normalise(split_outputs(self.query.weight, self.heads))
        maps = spectral.normalise(self.value_map)
        return (
            query.to(self.query.weight.dtype),  # as the projection of tokens rounds it
            maps * (factor if slope is None else factor[:, None, None]).to(maps.dtype),
            spectral.normalise(self.out.weight),
        )

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """Upper bound on the constant: at most ``scale`` in the mixed norm, whatever it is in others.

        Of the factors that the forward pass uses, in float64 and differentiable.

        Args:
            p: 2, ``math.inf`` or "mixed".
            length: N for which the bound holds, shorter ones included; None for ``context``, which it must not exceed.
        """
        p = parse_norm(p)
        length = self.context if length is None else length
        check_length(length, self.context)
        query, maps, out = (factor.double() for factor in self.factors())
        bound = theorems.tied_l2_bound(query, maps, out.mT, length, p, self.slope) * self.dropout.lipschitz_constant()
        return bound.nan_to_num(nan=math.inf, posinf=math.inf)

    def contraction_bound(self) -> Float[Tensor, ""]:
        """The bound in the mixed norm, in which the layer contracts."""
        return self.lipschitz_bound("mixed")
