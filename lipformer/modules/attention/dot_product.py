"""Scaled dot-product attention, the baseline: Lipschitz on bounded inputs only."""

import math
from typing import Unpack

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from lipformer import theorems
from lipformer.functional.attention import dot_product_scores
from lipformer.functional.heads import merge_heads, split_heads
from lipformer.functional.spectral import Norm
from lipformer.modules.attention.base import BoundedOnBall, FusedArguments, FusedAttention
from lipformer.modules.attention.scored import SoftmaxAttention
from lipformer.modules.dropout import Dropout


class DotProductAttention(SoftmaxAttention, BoundedOnBall, FusedAttention):
    r"""Multi-head scaled dot-product self-attention. Not Lipschitz, but so on each ball.

    .. math:: F(X) = [P^1 X W^V_1, \dots, P^H X W^V_H] W^O, \qquad
              P^h = \mathrm{softmax}\big(X W^Q_h (X W^K_h)^\top / \sqrt{D/H}\big)

    A token of zeros averages the others, whose spread enters its derivative.

    Arguments and errors as for :class:`~lipformer.modules.attention.base.Attention` and
    :class:`~lipformer.options.attention.AttentionOptions`; dropout drops attention weights too, as the reference code
    of the original Transformer does.

    References: Vaswani et al. 2017, sec. 3.2, arXiv 1706.03762. Not Lipschitz: Kim et al. 2021, Theorem 3.1.
    """

    caveat = "not Lipschitz: Kim et al. 2021, Theorem 3.1"

    def __init__(self, width: int, heads: int, **common: Unpack[FusedArguments]):
        super().__init__(width, heads, **common)
        self.project(width, query=width, key=width, value=width, out=width)
        self.weight_dropout = Dropout(self.dropout.p)

    def attend_fused(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch N D"]:
        """By ``scaled_dot_product_attention``."""
        mixed = F.scaled_dot_product_attention(
            split_heads(self.query(x), self.heads),
            split_heads(self.key(x), self.heads),
            self.values(x),
            dropout_p=self.weight_dropout.p if self.training else 0.0,
            is_causal=self.causal,  # alone: the backends disagree about it beside a mask
        )
        return self.out(merge_heads(mixed))

    def mixing_weights(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N N"]:
        """The attention weights, some of them dropped in train mode."""
        return self.weight_dropout(self.attention_weights(x))

    def attention_scores(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N N"]:
        r"""Scaled dot products, :math:`q_i \cdot k_j / \sqrt{D/H}`, before the mask."""
        return dot_product_scores(split_heads(self.query(x), self.heads), split_heads(self.key(x), self.heads))

    def theorem_on_ball(
        self, weights: dict[str, Tensor], radius: float | Tensor, p: Norm, length: int
    ) -> Float[Tensor, ""]:
        """``theorems.dot_product_bound_on_ball``; in the mixed norm and the inf-norm free of ``length``."""
        query, key = weights["query"], weights["key"]
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        return theorems.dot_product_bound_on_ball(
            scores, weights["value"], weights["out"], radius, length, p, self.causal
        )

    def dropout_constant(self, p: Norm) -> Tensor | float:
        """Of both dropouts; on weights it costs sqrt(2) more than 1 / (1 - p): rows no longer sum to one."""
        dropped = self.weight_dropout.lipschitz_constant()
        dropped *= math.sqrt(2) if dropped > 1 else 1
        return dropped * self.dropout.lipschitz_constant()
