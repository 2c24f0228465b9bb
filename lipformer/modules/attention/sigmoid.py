"""Attention by sigmoids of the scores: no row is normalised."""

import math
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from lipformer import theorems
from lipformer.functional.attention import dot_product_scores
from lipformer.functional.heads import split_heads
from lipformer.functional.spectral import Norm
from lipformer.modules.attention.base import AttentionArguments, BoundedOnBall
from lipformer.modules.attention.scored import ScoredAttention
from lipformer.options.attention import SigmoidOptions


class SigmoidAttention(ScoredAttention, BoundedOnBall):
    r"""Multi-head sigmoid self-attention. Not Lipschitz, but so on each ball.

    .. math:: F(X) = [P^1 X W^V_1, \dots, P^H X W^V_H] W^O, \qquad
              P^h_{ij} = \mathrm{sigmoid}\big(q_i \cdot k_j / \sqrt{D/H} + b\big), \quad b = -\log N

    b makes a row of N small scores sum to about one, as a softmax's does. N is ``context``, a constant: with the
    length of the batch in its place the output would depend on padding. Early causal rows sum to less. At a token of
    zeros the derivative is a sum of products of the others. There is no kernel for it in torch, hence only the
    explicit form.

    Arguments and errors as for :class:`~lipformer.modules.attention.base.Attention` and
    :class:`~lipformer.options.attention.SigmoidOptions`.

    References: Ramapuram et al. 2024, arXiv 2409.04431.
    """

    caveat = "not Lipschitz: its derivative grows with the square of the tokens"

    def __init__(
        self, width: int, heads: int, *, bias: float | None = SigmoidOptions.bias, **common: Unpack[AttentionArguments]
    ):
        super().__init__(width, heads, **common)
        SigmoidOptions.check(bias=bias)
        self.bias = -math.log(self.context) if bias is None else bias
        self.project(width, query=width, key=width, value=width, out=width)

    def attention_scores(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N N"]:
        """Scaled dot products plus b, before the mask."""
        scores = dot_product_scores(split_heads(self.query(x), self.heads), split_heads(self.key(x), self.heads))
        return scores + self.bias

    def weights_from_scores(self, scores: Float[Tensor, "*batch H N N"]) -> Float[Tensor, "*batch H N N"]:
        """The sigmoids, each in (0, 1); rows sum to anything."""
        weights = torch.sigmoid(scores)
        return weights.tril() if self.causal else weights

    def theorem_on_ball(
        self, weights: dict[str, Tensor], radius: float | Tensor, p: Norm, length: int
    ) -> Float[Tensor, ""]:
        """``theorems.sigmoid_bound_on_ball``."""
        return theorems.sigmoid_bound_on_ball(**weights, bias=self.bias, radius=radius, length=length, p=p)
