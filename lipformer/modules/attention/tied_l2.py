"""L2 attention with W^K = W^Q: Lipschitz, with a known constant."""

import math
from typing import Unpack

from jaxtyping import Float
from torch import Tensor

from lipformer import theorems
from lipformer.functional.attention import l2_scores, penalise_distance
from lipformer.functional.fused import fused_tied_l2
from lipformer.functional.heads import split_heads, split_outputs
from lipformer.functional.spectral import Norm
from lipformer.functional.value_path import head_outputs, value_maps
from lipformer.modules.attention.base import FusedArguments, FusedAttention
from lipformer.modules.attention.locality import log_slopes, slopes
from lipformer.modules.attention.scored import SoftmaxAttention
from lipformer.options.attention import TiedL2Options


class TiedL2Arguments(FusedArguments, total=False):
    """Keyword arguments that a derived kind passes on to `TiedL2Attention`."""

    columns: int
    locality: float | None


class TiedL2Attention(SoftmaxAttention, FusedAttention):
    r"""Multi-head L2 self-attention with tied queries and keys.

    .. math:: F(X) = [P^1 X A_1 W^V_1, \dots, P^H X A_H W^V_H] W^O, \qquad
              P^h_{ij} \propto e^{-\|x_i W_h - x_j W_h\|_2^2 / s}, \quad A_h = W_h W_h^\top / s

    with W_h of shape (D, d) and s = sqrt(d). Computed as P^h (X W_h) M_h with M_h = W_h^T W^V_h / s, which saves
    the value projection: a head reads tokens only through their d queries, and that is what makes it Lipschitz.
    Without A_h (as most public code has it) tokens may move in the null space of W_h, unseen by P^h, and F is not.
    Attention weights are never dropped: that breaks the invariance to a common shift, and with it the theorem.

    ``columns`` sets d = columns D/H. 2 gives the parameter count of untied attention; s is then sqrt(2 D/H), without
    which the theorem's constant would not hold. ``locality`` is the initial slope m_h of the first head's penalty
    m_h (i - j) on the scores; the other heads' are smaller, down to 1/64 of it, and all are learned. Nearer tokens then
    count more, and the constant is lower and does not grow with the length (``theorems.local_mass``).

    Arguments and errors as for :class:`~lipformer.modules.attention.base.Attention` and
    :class:`~lipformer.options.attention.TiedL2Options`; ``locality`` with ``causal=False`` is a ``ValueError``.

    References: Kim, Papamakarios, Mnih 2021, sec. 3 and Theorem 3.2, arXiv 2006.04710.
    """

    weight_methods = ("value_maps",)
    """Methods that depend on the parameters alone (`lipformer.modules.contexts.constant_weights`)."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        columns: int = TiedL2Options.columns,
        locality: float | None = TiedL2Options.locality,
        **common: Unpack[FusedArguments],
    ):
        super().__init__(width, heads, **common)
        TiedL2Options.check(columns=columns, locality=locality)
        self.s = math.sqrt(columns * width // heads)
        self.project(width, query=columns * width, value=width, out=width)
        self.log_slope = log_slopes(locality, heads, self.causal)

    def attend_fused(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch N D"]:
        """By ``scaled_dot_product_attention``, distances written as dot products."""
        outputs = head_outputs(self.value_maps(), self.out.weight)
        return fused_tied_l2(x, self.query.weight, outputs, s=self.s, causal=self.causal, slope=self.slope)

    def values(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N d"]:
        """X W_h M_h: the values, through the queries."""
        return split_heads(self.query(x), self.heads) @ self.value_maps().to(x.dtype)

    def attention_scores(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N N"]:
        """Negative squared distances over s, less the penalty, up to a constant of each row, before the mask."""
        origin = x[..., :1, :].detach()  # distances do not depend on the origin, but their rounding does
        queries = split_heads(self.query(x - origin), self.heads)
        scores = l2_scores(queries, queries, self.s)
        return scores if self.slope is None else penalise_distance(scores, self.slope)

    @property
    def slope(self) -> Float[Tensor, " H"] | None:
        """Penalty of each head on the scores of past tokens, in score per token; None for none."""
        return slopes(self.log_slope)

    def value_maps(self) -> Float[Tensor, "H d v"]:
        """M_h = W_h^T W^V_h / s, at least in float32 whatever autocast says."""
        return value_maps(self.query.weight, self.value.weight, self.heads, self.s)

    def theorem(self, p: Norm, length: int) -> Float[Tensor, ""]:
        """The sharpest of this library's theorems for the norm, never above Theorem 3.2: ``theorems.tied_l2_bound``."""
        query = split_outputs(self.query.weight.double(), self.heads)
        return theorems.tied_l2_bound(query, self._certified_maps(), self.out.weight.double().mT, length, p, self.slope)

    def _certified_maps(self) -> Tensor:
        """M_h in float64, of which the forward pass uses a rounding."""
        return value_maps(self.query.weight.double(), self.value.weight.double(), self.heads, self.s)
