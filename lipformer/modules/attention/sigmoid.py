"""Attention by sigmoids of the scores: no row is normalised."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lipformer.bounds import theorems
from lipformer.functional.attention import dot_product_scores
from lipformer.functional.heads import check_heads, merge_heads, split_heads
from lipformer.functional.spectral import Norm, parse_norm
from lipformer.modules.attention.projection import certified_heads, projection
from lipformer.modules.attention.scored import ScoredAttention
from lipformer.modules.dropout import Dropout


class SigmoidAttention(ScoredAttention):
    r"""Multi-head sigmoid self-attention. Not Lipschitz, but so on each ball.

    .. math:: F(X) = [P^1 X W^V_1, \dots, P^H X W^V_H] W^O, \qquad
              P^h_{ij} = \mathrm{sigmoid}\big(q_i \cdot k_j / \sqrt{D/H} + b\big), \quad b = -\log N

    b makes a row of N small scores sum to about one, as a softmax's does. N is ``context``, a constant: with the
    length of the batch in its place the output would depend on padding. Early causal rows sum to less. There is no
    kernel for it in torch, hence only the explicit form.

    Args:
        width: features of a token, D.
        heads: H, must divide D.
        context: longest sequence, N; sets b, and the default length of bounds.
        causal: whether token i attends to tokens 0..i only. Padding on the right then needs no mask.
        dropout: probability of dropping an entry of the output.
        bias: b; None for -log N.

    Raises:
        ValueError: ``heads`` does not divide ``width``, or ``dropout`` is outside [0, 1).

    References: Ramapuram et al. 2024, arXiv 2409.04431.
    """

    caveat = "not Lipschitz: its derivative grows with the square of the tokens"

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        context: int,
        causal: bool = True,
        dropout: float = 0.0,
        bias: float | None = None,
    ):
        super().__init__()
        check_heads(width, heads)
        self.heads, self.context, self.causal = heads, context, causal
        self.bias = -math.log(context) if bias is None else bias
        self.query = projection(width, width)
        self.key = projection(width, width)
        self.value = projection(width, width)
        self.out = projection(width, width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch N D"]:
        """Attend, differentiable to any order."""
        values = split_heads(self.value(x), self.heads)
        mixed = self.attention_weights(x).to(values.dtype) @ values
        return self.dropout(self.out(merge_heads(mixed)))

    def attention_scores(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N N"]:
        """Scaled dot products plus b, before the mask."""
        scores = dot_product_scores(split_heads(self.query(x), self.heads), split_heads(self.key(x), self.heads))
        return scores + self.bias

    def weights_from_scores(self, scores: Float[Tensor, "*batch H N N"]) -> Float[Tensor, "*batch H N N"]:
        """The sigmoids, each in (0, 1); rows sum to anything."""
        weights = torch.sigmoid(scores)
        return weights.tril() if self.causal else weights

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """Infinity, in every norm: at a token of zeros the derivative is a sum of products of the others."""
        parse_norm(p)
        return torch.tensor(math.inf, dtype=torch.float64, device=self.out.weight.device)

    def lipschitz_bound_on_ball(
        self, radius: float | Tensor, p: Norm = 2, length: int | None = None
    ) -> Float[Tensor, ""]:
        """Upper bound on the Lipschitz constant on tokens of Euclidean norm at most ``radius``, float64.

        Args:
            radius: R.
            p: 2, ``math.inf`` or "mixed".
            length: N for which the bound holds, shorter ones included; None for ``context``.
        """
        p, length = parse_norm(p), self.context if length is None else length
        bound = theorems.sigmoid_bound_on_ball(
            **certified_heads(self), bias=self.bias, radius=radius, length=length, p=p
        )
        return (bound * self.dropout.lipschitz_constant()).nan_to_num(nan=math.inf, posinf=math.inf)
