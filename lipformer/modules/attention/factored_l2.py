"""Base class of factored L2 attention, contractive because each factor is normalised."""

import math
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipformer import theorems
from lipformer.functional import spectral
from lipformer.functional.factored_l2 import attend, factored_scores, root_temperature
from lipformer.functional.spectral import Norm
from lipformer.modules.attention.base import FusedArguments
from lipformer.modules.attention.length import NormalisedForContext
from lipformer.modules.attention.locality import log_slopes, slopes, where_causal
from lipformer.modules.attention.scored import SoftmaxAttention
from lipformer.options.attention import FactoredL2Options


class FactoredL2Arguments(FusedArguments, total=False):
    """Keyword arguments that a kind passes on to `FactoredL2Attention`."""

    scale: float
    temperature: float
    locality: float | None


class FactoredL2Attention(SoftmaxAttention, NormalisedForContext):
    r"""Heads :math:`P^h X U_h V_h` with a temperature and a penalty on distance of their own, then O.

    A kind defines U and O (`query_maps`, `factors`) and the effect of dropout on its constant.

    Arguments and errors as for :class:`~lipformer.modules.attention.base.Attention` and
    :class:`~lipformer.options.attention.FactoredL2Options`; dropout is contractive in both modes, and a
    sequence longer than ``context`` is a ``ValueError``. Where ``causal`` is false there is no penalty on distance:
    its default does not apply, and a ``locality`` that is given is a ``ValueError``.
    """

    weight_methods = ("factors",)
    """Methods that depend on the parameters alone (`lipformer.modules.contexts.constant_weights`)."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        scale: float = FactoredL2Options.scale,
        temperature: float = FactoredL2Options.temperature,
        locality: float | None = where_causal(FactoredL2Options.locality),
        **common: Unpack[FusedArguments],
    ):
        super().__init__(width, heads, **common)
        FactoredL2Options.check(scale=scale, temperature=temperature, locality=locality)
        self.scale = scale
        self.value_map = nn.Parameter(torch.eye(width // heads).repeat(heads, 1, 1))
        self.log_slope = log_slopes(locality, heads, self.causal)
        self.log_temperature = nn.Parameter(torch.full((heads,), math.log(temperature)))

    def attend(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch N D"]:
        """The explicit form; before dropout."""
        return self._attend(x, fused=False)

    def attend_fused(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch N D"]:
        """By ``scaled_dot_product_attention``, distances written as dot products."""
        return self._attend(x, fused=True)

    def _attend(self, x: Tensor, fused: bool) -> Tensor:
        query, maps, out = self.factors()
        return attend(x, query, maps, out, self.log_temperature, causal=self.causal, fused=fused, slope=self.slope)

    def attention_scores(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N N"]:
        """Negative squared distances times tau_h, less the penalty, up to a constant of each row, before the mask."""
        return factored_scores(x, self.query_maps(), self.log_temperature, self.slope)

    @property
    def slope(self) -> Float[Tensor, " H"] | None:
        """Penalty of each head on the scores of past tokens, in score per token; None for none."""
        return slopes(self.log_slope)

    def query_maps(self) -> Float[Tensor, "H D d"]:
        """Return the U_h, which are enough for the attention scores."""
        raise NotImplementedError

    def factors(self) -> tuple[Float[Tensor, "H D d"], Float[Tensor, "H d d"], Float[Tensor, "D D"]]:
        """Return U_h, the V_h with all divisions done, and O in ``nn.Linear`` layout."""
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

    def theorem(self, p: Norm, length: int) -> Float[Tensor, ""]:
        """``theorems.tied_l2_bound`` of the factors that the forward pass uses."""
        query, maps, out = (factor.double() for factor in self.factors())
        return theorems.tied_l2_bound(query, maps, out.mT, length, p, self.slope)
