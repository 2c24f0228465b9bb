"""Scaled dot-product attention, the baseline: Lipschitz on bounded inputs only."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from lipformer.bounds import theorems
from lipformer.functional.attention import dot_product_scores
from lipformer.functional.heads import check_heads, merge_heads, split_heads
from lipformer.functional.spectral import Norm, parse_norm
from lipformer.modules.attention.projection import certified_heads, projection
from lipformer.modules.attention.scored import SoftmaxAttention
from lipformer.modules.dropout import Dropout


class DotProductAttention(SoftmaxAttention):
    r"""Multi-head scaled dot-product self-attention. Not Lipschitz, but so on each ball.

    .. math:: F(X) = [P^1 X W^V_1, \dots, P^H X W^V_H] W^O, \qquad
              P^h = \mathrm{softmax}\big(X W^Q_h (X W^K_h)^\top / \sqrt{D/H}\big)

    Args:
        width: features of a token, D.
        heads: H, must divide D.
        context: longest sequence, N; used only as the default length of bounds.
        causal: whether token i attends to tokens 0..i only. Padding on the right then needs no mask.
        dropout: probability of dropping an attention weight and an entry of the output (both, as the
            reference code of the original Transformer does).
        fused: whether ``forward`` uses ``scaled_dot_product_attention`` by default.

    Raises:
        ValueError: ``heads`` does not divide ``width``, or ``dropout`` is outside [0, 1).

    References: Vaswani et al. 2017, sec. 3.2, arXiv 1706.03762. Not Lipschitz: Kim et al. 2021, Theorem 3.1.
    """

    caveat = "not Lipschitz: Kim et al. 2021, Theorem 3.1"

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        context: int,
        causal: bool = True,
        dropout: float = 0.0,
        fused: bool = True,
    ):
        super().__init__()
        check_heads(width, heads)
        self.heads, self.context, self.causal, self.fused = heads, context, causal, fused
        self.query = projection(width, width)
        self.key = projection(width, width)
        self.value = projection(width, width)
        self.out = projection(width, width)
        self.weight_dropout = Dropout(dropout)
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "*batch N D"], *, fused: bool | None = None) -> Float[Tensor, "*batch N D"]:
        """Attend; ``fused=False`` is the explicit form, differentiable to any order."""
        fused = self.fused if fused is None else fused
        values = split_heads(self.value(x), self.heads)
        if fused:
            mixed = F.scaled_dot_product_attention(
                split_heads(self.query(x), self.heads),
                split_heads(self.key(x), self.heads),
                values,
                dropout_p=self.weight_dropout.p if self.training else 0.0,
                is_causal=self.causal,  # alone: the backends disagree about it beside a mask
            )
        else:
            mixed = self.weight_dropout(self.attention_weights(x)).to(values.dtype) @ values
        return self.dropout(self.out(merge_heads(mixed)))

    def attention_scores(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N N"]:
        r"""Scaled dot products, :math:`q_i \cdot k_j / \sqrt{D/H}`, before the mask."""
        return dot_product_scores(split_heads(self.query(x), self.heads), split_heads(self.key(x), self.heads))

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """Infinity, in every norm: a token of zeros averages the others, whose spread enters its derivative."""
        parse_norm(p)
        return torch.tensor(math.inf, dtype=torch.float64, device=self.out.weight.device)

    def lipschitz_bound_on_ball(
        self, radius: float | Tensor, p: Norm = 2, length: int | None = None
    ) -> Float[Tensor, ""]:
        r"""Upper bound on the Lipschitz constant on tokens of Euclidean norm at most ``radius``, float64.

        In the mixed norm and the inf-norm free of ``length``; see ``theorems.dot_product_bound_on_ball``. Dropout in
        train mode counts. On weights it costs sqrt(2) more than 1 / (1 - p): rows no longer sum to one.

        Args:
            radius: R.
            p: 2, ``math.inf`` or "mixed".
            length: N for which the bound holds, shorter ones included; None for ``context``.
        """
        weights = certified_heads(self)
        query, key = weights["query"], weights["key"]
        bound = theorems.dot_product_bound_on_ball(
            query @ key.mT / math.sqrt(query.shape[-1]),
            weights["value"],
            weights["out"],
            radius,
            self.context if length is None else length,
            p,
            self.causal,
        )
        dropped = self.weight_dropout.lipschitz_constant()
        dropped *= math.sqrt(2) if dropped > 1 else 1
        return bound * dropped * self.dropout.lipschitz_constant()
