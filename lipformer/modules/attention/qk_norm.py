"""Dot-product attention of normalised queries and keys."""

from typing import Unpack

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lipformer import theorems
from lipformer.functional.attention import dot_product_scores
from lipformer.functional.heads import merge_heads, split_heads
from lipformer.functional.precision import at_least_float32
from lipformer.functional.spectral import Norm
from lipformer.modules.attention.base import BoundedOnBall, FusedArguments, FusedAttention
from lipformer.modules.attention.scored import SoftmaxAttention
from lipformer.options.attention import QKNormOptions


class QKNormAttention(SoftmaxAttention, BoundedOnBall, FusedAttention):
    r"""Multi-head softmax self-attention with queries and keys normalised in each head.

    .. math:: F(X) = [P^1 X W^V_1, \dots, P^H X W^V_H] W^O, \qquad
              P^h = \mathrm{softmax}\big(\hat Q_h \hat K_h^\top / \sqrt d\big), \quad
              \hat z = \gamma \odot \frac{z - \mu(z)}{\sqrt{\tfrac1d \|z - \mu(z)\|_2^2 + \epsilon}}

    with d = D/H; gamma, one for queries and one for keys, is shared by the heads; mu(z) is the mean, or 0 where
    ``centred`` is false. Scores are at most :math:`\sqrt d \max|\gamma^Q| \max|\gamma^K|`, so weights move at a finite
    rate; but the values that they mix are not bounded: not Lipschitz, but so on each ball.

    Arguments and errors as for :class:`~lipformer.modules.attention.base.Attention` and
    :class:`~lipformer.options.attention.QKNormOptions`.

    References: Dehghani et al. 2023, arXiv 2302.05442 (LayerNorm); Henry et al. 2020, arXiv 2010.04245.
    """

    caveat = "not Lipschitz: values are not bounded"

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        centred: bool = QKNormOptions.centred,
        eps: float = QKNormOptions.eps,
        **common: Unpack[FusedArguments],
    ):
        super().__init__(width, heads, **common)
        QKNormOptions.check(centred=centred, eps=eps)
        self.centred, self.eps = centred, eps
        self.project(width, query=width, key=width, value=width, out=width)
        self.query_gain = nn.Parameter(torch.ones(width // heads))
        self.key_gain = nn.Parameter(torch.ones(width // heads))

    def attend_fused(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch N D"]:
        """By ``scaled_dot_product_attention``."""
        mixed = F.scaled_dot_product_attention(*self._normalised(x), self.values(x), is_causal=self.causal)
        return self.out(merge_heads(mixed))

    def attention_scores(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N N"]:
        """Scaled dot products of the normalised queries and keys, before the mask."""
        return dot_product_scores(*self._normalised(x))

    def theorem_on_ball(
        self, weights: dict[str, Tensor], radius: float | Tensor, p: Norm, length: int
    ) -> Float[Tensor, ""]:
        """``theorems.qk_norm_bound_on_ball``."""
        if self.centred:
            weights |= {name: weights[name] - weights[name].mean(-1, keepdim=True) for name in ("query", "key")}
        return theorems.qk_norm_bound_on_ball(
            **weights,
            query_gain=self.query_gain.double(),
            key_gain=self.key_gain.double(),
            eps=self.eps,
            radius=radius,
            length=length,
            p=p,
        )

    def _normalised(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys of all heads, normalised at least in float32 and cast back."""
        pair = ((self.query, self.query_gain), (self.key, self.key_gain))
        query, key = (self._normalise(split_heads(linear(x), self.heads), gain) for linear, gain in pair)
        return query, key

    def _normalise(self, tokens: Tensor, gain: Tensor) -> Tensor:
        wide = at_least_float32(tokens)
        if self.centred:
            wide = wide - wide.mean(-1, keepdim=True)
        return (wide * (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt() * gain).to(tokens.dtype)
