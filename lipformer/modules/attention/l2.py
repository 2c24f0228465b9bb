"""L2 attention with separate keys: the ablation between dot products and tied L2."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lipformer.functional.attention import l2_scores
from lipformer.functional.fused import fused_l2
from lipformer.functional.heads import check_heads, merge_heads, split_heads
from lipformer.functional.precision import linear_float32
from lipformer.functional.spectral import Norm, parse_norm
from lipformer.functional.value_path import head_outputs, value_maps
from lipformer.modules.attention.projection import projection
from lipformer.modules.attention.scored import SoftmaxAttention
from lipformer.modules.dropout import Dropout


class L2Attention(SoftmaxAttention):
    r"""Multi-head L2 self-attention with W^K apart from W^Q. Not Lipschitz.

    .. math:: F(X) = [P^1 X A_1 W^V_1, \dots, P^H X A_H W^V_H] W^O, \qquad
              P^h_{ij} \propto e^{-\|x_i W^Q_h - x_j W^K_h\|_2^2 / s}, \quad A_h = W^Q_h W_h^{Q\top} / s

    with s = sqrt(D/H). Which A_h the untied variant of Kim et al. has is not known to us; this is the one
    that becomes :class:`TiedL2Attention` when W^K = W^Q.

    Args:
        width: features of a token, D.
        heads: H, must divide D.
        context: longest sequence, N; used only as the default length of :meth:`lipschitz_bound`.
        causal: whether token i attends to tokens 0..i only. Padding on the right then needs no mask.
        dropout: probability of dropping an entry of the output (never of the weights, as in the tied kind).
        fused: whether ``forward`` uses ``scaled_dot_product_attention`` by default.

    Raises:
        ValueError: ``heads`` does not divide ``width``, or ``dropout`` is outside [0, 1).

    References: Kim, Papamakarios, Mnih 2021, sec. 3 and 5, arXiv 2006.04710.
    """

    caveat = "not Lipschitz: keys apart from queries"

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
        self.s = math.sqrt(width // heads)
        self.query = projection(width, width)
        self.key = projection(width, width)
        self.value = projection(width, width)
        self.out = projection(width, width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "*batch N D"], *, fused: bool | None = None) -> Float[Tensor, "*batch N D"]:
        """Attend; ``fused=False`` is the explicit form, differentiable to any order."""
        fused = self.fused if fused is None else fused
        maps = value_maps(self.query.weight, self.value.weight, self.heads, self.s)
        if fused:
            outputs = head_outputs(maps, self.out.weight)
            mixed = fused_l2(x, self.query.weight, self.key.weight, outputs, s=self.s, causal=self.causal)
            return self.dropout(mixed)
        values = split_heads(self.query(x), self.heads) @ maps.to(x.dtype)
        mixed = self.attention_weights(x).to(values.dtype) @ values
        return self.dropout(self.out(merge_heads(mixed)))

    def attention_scores(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N N"]:
        """Negative squared distances over s up to a constant of each row, before the mask."""
        origin = x[..., :1, :].detach()  # distances allow one common shift of queries and keys: the first key
        gap = linear_float32(origin, self.query.weight) - linear_float32(origin, self.key.weight)
        queries = split_heads(self.query(x - origin) + gap, self.heads)
        keys = split_heads(self.key(x - origin), self.heads)
        return l2_scores(queries, keys, self.s)

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """Infinity, in every norm: a key far from its own token's query leaves distances unbounded."""
        parse_norm(p)
        return torch.tensor(math.inf, dtype=torch.float64, device=self.out.weight.device)
