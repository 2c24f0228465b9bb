"""Scaled cosine similarity attention: Lipschitz on all inputs, by a smoothed normalisation of q, k and v."""

import math
from typing import Unpack

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lipformer import theorems
from lipformer.functional.heads import merge_heads, split_heads
from lipformer.functional.precision import at_least_float32
from lipformer.functional.spectral import Norm
from lipformer.modules.attention.base import FusedArguments, FusedAttention
from lipformer.modules.attention.scored import SoftmaxAttention
from lipformer.options.attention import CosineOptions


class CosineAttention(SoftmaxAttention, FusedAttention):
    r"""Multi-head scaled cosine similarity self-attention.

    .. math:: F(X) = [\nu_1 P^1 \hat V_1, \dots, \nu_H P^H \hat V_H] W^O, \qquad
              P^h = \mathrm{softmax}\big(\tau_h \hat Q_h \hat K_h^\top\big), \quad
              \hat z = \frac{z}{\sqrt{\|z\|_2^2 + \epsilon}}

    with queries, keys and values of each token normalised in each head; tau_h > 0 and nu_h > 0 are learned, as
    softplus of parameters. All that a head gathers has norm below nu_h, and the normalisation has slope
    :math:`\epsilon^{-1/2}` at zero: the constant grows like that, so eps should be as large as tokens allow.

    Arguments and errors as for :class:`~lipformer.modules.attention.base.Attention` and
    :class:`~lipformer.options.attention.CosineOptions`.

    References: Qi et al. 2023 (LipsFormer), arXiv 2304.09856.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        temperature: float = CosineOptions.temperature,
        gain: float = CosineOptions.gain,
        eps: float = CosineOptions.eps,
        **common: Unpack[FusedArguments],
    ):
        super().__init__(width, heads, **common)
        CosineOptions.check(temperature=temperature, gain=gain, eps=eps)
        self.eps = eps
        self.project(width, query=width, key=width, value=width, out=width)
        self.raw_temperature = nn.Parameter(torch.full((heads,), _inverse_softplus(temperature)))
        self.raw_gain = nn.Parameter(torch.full((heads,), _inverse_softplus(gain)))

    def attend_fused(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch N D"]:
        """By ``scaled_dot_product_attention``."""
        query, key = self._normalised(self.query, x, self.raw_temperature), self._normalised(self.key, x)
        mixed = F.scaled_dot_product_attention(query, key, self.values(x), is_causal=self.causal, scale=1.0)
        return self.out(merge_heads(mixed))

    def values(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N d"]:
        """The normalised values, times the heads' nu_h."""
        return self._normalised(self.value, x, self.raw_gain)

    def attention_scores(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N N"]:
        """Similarities of the normalised queries and keys, times the heads' tau_h, before the mask."""
        return self._normalised(self.query, x, self.raw_temperature) @ self._normalised(self.key, x).mT

    def theorem(self, p: Norm, length: int) -> Float[Tensor, ""]:
        """``theorems.cosine_bound``."""
        return theorems.cosine_bound(
            **self.certified_weights(),
            temperature=F.softplus(self.raw_temperature.double()),
            gain=F.softplus(self.raw_gain.double()),
            eps=self.eps,
            length=length,
            p=p,
        )

    def _normalised(self, linear: nn.Linear, x: Tensor, raw_factor: Tensor | None = None) -> Tensor:
        """Return normalised projections of all heads, times the heads' factors; at least in float32, then cast back."""
        tokens = split_heads(linear(x), self.heads)
        wide = at_least_float32(tokens)
        wide = wide * (wide.square().sum(-1, keepdim=True) + self.eps).rsqrt()
        if raw_factor is not None:
            wide = wide * F.softplus(raw_factor.to(wide.dtype))[:, None, None]
        return wide.to(tokens.dtype)


def _inverse_softplus(y: float) -> float:
    """Return the x with log(1 + e^x) = y."""
    return y + math.log(-math.expm1(-y))
