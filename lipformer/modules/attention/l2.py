"""L2 attention with separate keys: the ablation between dot products and tied L2."""

import math
from typing import Unpack

from jaxtyping import Float
from torch import Tensor

from lipformer.functional.attention import l2_scores
from lipformer.functional.fused import fused_l2
from lipformer.functional.heads import split_heads
from lipformer.functional.precision import linear_float32
from lipformer.functional.value_path import head_outputs, value_maps
from lipformer.modules.attention.base import FusedArguments, FusedAttention
from lipformer.modules.attention.scored import SoftmaxAttention


class L2Attention(SoftmaxAttention, FusedAttention):
    r"""Multi-head L2 self-attention with W^K apart from W^Q. Not Lipschitz.

    .. math:: F(X) = [P^1 X A_1 W^V_1, \dots, P^H X A_H W^V_H] W^O, \qquad
              P^h_{ij} \propto e^{-\|x_i W^Q_h - x_j W^K_h\|_2^2 / s}, \quad A_h = W^Q_h W_h^{Q\top} / s

    with s = sqrt(D/H). A key far from its own token's query leaves distances unbounded. Which A_h the untied variant of
    Kim et al. has is not known to us; this is the one that becomes :class:`TiedL2Attention` when W^K = W^Q.

    Arguments and errors as for :class:`~lipformer.modules.attention.base.Attention` and
    :class:`~lipformer.options.attention.AttentionOptions`; weights are never dropped, as in the tied kind.

    References: Kim, Papamakarios, Mnih 2021, sec. 3 and 5, arXiv 2006.04710.
    """

    caveat = "not Lipschitz: keys apart from queries"

    def __init__(self, width: int, heads: int, **common: Unpack[FusedArguments]):
        super().__init__(width, heads, **common)
        self.s = math.sqrt(width // heads)
        self.project(width, query=width, key=width, value=width, out=width)

    def attend_fused(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch N D"]:
        """By ``scaled_dot_product_attention``, distances written as dot products."""
        outputs = head_outputs(self.value_maps(), self.out.weight)
        return fused_l2(x, self.query.weight, self.key.weight, outputs, s=self.s, causal=self.causal)

    def values(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N d"]:
        """X W^Q_h M_h, where M_h = W_h^QT W^V_h / s: the values, through the queries."""
        return split_heads(self.query(x), self.heads) @ self.value_maps().to(x.dtype)

    def value_maps(self) -> Float[Tensor, "H d v"]:
        """M_h, at least in float32 whatever autocast says."""
        return value_maps(self.query.weight, self.value.weight, self.heads, self.s)

    def attention_scores(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N N"]:
        """Negative squared distances over s up to a constant of each row, before the mask."""
        origin = x[..., :1, :].detach()  # distances allow one common shift of queries and keys: the first key
        gap = linear_float32(origin, self.query.weight) - linear_float32(origin, self.key.weight)
        queries = split_heads(self.query(x - origin) + gap, self.heads)
        keys = split_heads(self.key(x - origin), self.heads)
        return l2_scores(queries, keys, self.s)
