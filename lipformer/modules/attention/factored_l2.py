"""What the contractive L2 layers that normalise each factor share: the head, its temperature, its penalty."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipformer.bounds import theorems
from lipformer.functional import spectral
from lipformer.functional.heads import check_heads
from lipformer.functional.spectral import Norm, parse_norm
from lipformer.functional.tempered import attend, root_temperature, tempered_scores
from lipformer.modules.attention.length import check_length
from lipformer.modules.attention.locality import log_slopes, slopes
from lipformer.modules.attention.scored import SoftmaxAttention
from lipformer.modules.dropout import ContractiveDropout


class FactoredL2Attention(SoftmaxAttention):
    r"""Heads :math:`P^h X U_h V_h` with a temperature and a penalty on distance of their own, then O.

    A kind says what U and O are (`query_maps`, `factors`) and what dropout does to its constant. Arguments as for
    :class:`~lipformer.modules.attention.ContractiveL2DecoupledAttention`.
    """

    caveat = ""
    weight_methods = ("factors",)
    """What depends on the parameters alone (`lipformer.functional.constant_weights`)."""

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
        query, maps, out = self.factors()
        mixed = attend(x, query, maps, out, self.log_temperature, causal=self.causal, fused=fused, slope=self.slope)
        return self.drop(mixed, query)

    def attention_scores(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N N"]:
        """Negative squared distances times tau_h, less the penalty, up to a constant of each row, before the mask."""
        return tempered_scores(x, self.query_maps(), self.log_temperature, self.slope)

    @property
    def slope(self) -> Float[Tensor, "H"] | None:
        """Penalty of each head on the scores of past tokens, in score per token; None for none."""
        return slopes(self.log_slope)

    def query_maps(self) -> Float[Tensor, "H D d"]:
        """U_h, all that attention scores need."""
        raise NotImplementedError

    def factors(self) -> tuple[Float[Tensor, "H D d"], Float[Tensor, "H d d"], Float[Tensor, "D D"]]:
        """U_h, V_h with all that is divided by, and O in ``nn.Linear`` layout."""
        raise NotImplementedError

    def linear_maps(self) -> dict[str, Tensor]:
        """The factors in ``nn.Linear`` layout: queries with the heads' temperatures, values by blocks, output."""
        query, maps, out = self.factors()
        query = query.mT * root_temperature(self.log_temperature)
        return {"query": query.flatten(0, 1), "value": torch.block_diag(*maps.mT), "out": out}

    def divided_maps(self, divisor: float = 1.0) -> Float[Tensor, "H d d"]:
        """V_h scale / ((4c + 1) divisor), of 2-norm at most that factor."""
        slope = self.slope
        factor = self.scale / (theorems.head_constant(self.context, slope) * divisor)
        maps = spectral.normalise(self.value_map)
        return maps * (factor if slope is None else factor[:, None, None]).to(maps.dtype)

    def drop(self, y: Float[Tensor, "*batch N D"], query: Float[Tensor, "H D d"]) -> Float[Tensor, "*batch N D"]:
        """Dropout of the output."""
        return self.dropout(y)

    def dropout_constant(self, query: Float[Tensor, "H D d"], p: Norm) -> Tensor | float:
        """Lipschitz constant of :meth:`drop`."""
        return self.dropout.lipschitz_constant()

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """Upper bound on the constant, of the factors that the forward pass uses, in float64 and differentiable.

        Args:
            p: 2, ``math.inf`` or "mixed".
            length: N for which the bound holds, shorter ones included; None for ``context``, which it must not exceed.
        """
        p = parse_norm(p)
        length = self.context if length is None else length
        check_length(length, self.context)
        query, maps, out = (factor.double() for factor in self.factors())
        bound = theorems.tied_l2_bound(query, maps, out.mT, length, p, self.slope)
        return (bound * self.dropout_constant(query, p)).nan_to_num(nan=math.inf, posinf=math.inf)
