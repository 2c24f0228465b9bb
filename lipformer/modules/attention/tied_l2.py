"""L2 attention with W^K = W^Q: Lipschitz, with a known constant."""

import math

from jaxtyping import Float
from torch import Tensor

from lipformer.bounds import theorems
from lipformer.functional.attention import l2_scores, penalise_distance
from lipformer.functional.fused import fused_tied_l2
from lipformer.functional.heads import check_heads, merge_heads, split_heads, split_outputs
from lipformer.functional.spectral import Norm, parse_norm
from lipformer.functional.value_path import head_outputs, value_maps
from lipformer.modules.attention.locality import log_slopes, slopes
from lipformer.modules.attention.projection import projection
from lipformer.modules.attention.scored import SoftmaxAttention
from lipformer.modules.dropout import ContractiveDropout, Dropout


class TiedL2Attention(SoftmaxAttention):
    r"""Multi-head L2 self-attention with tied queries and keys.

    .. math:: F(X) = [P^1 X A_1 W^V_1, \dots, P^H X A_H W^V_H] W^O, \qquad
              P^h_{ij} \propto e^{-\|x_i W_h - x_j W_h\|_2^2 / s}, \quad A_h = W_h W_h^\top / s

    with W_h of shape (D, d) and s = sqrt(d). Computed as P^h (X W_h) M_h with M_h = W_h^T W^V_h / s, which saves
    the value projection: a head reads tokens only through their d queries, and that is what makes it Lipschitz.
    Without A_h (as most public code has it) tokens may move in the null space of W_h, unseen by P^h, and F is not.

    Args:
        width: features of a token, D.
        heads: H, must divide D.
        context: longest sequence, N; used only as the default length of :meth:`lipschitz_bound`.
        causal: whether token i attends to tokens 0..i only (itself always). Padding on the right then needs
            no mask.
        dropout: probability of dropping an entry of the output. The attention weights are never dropped: that
            breaks the invariance to a common shift, and with it the theorem.
        fused: whether ``forward`` uses ``scaled_dot_product_attention`` by default.
        columns: columns of W_h in units of D/H, so d = columns D/H. 2 gives the parameter count of untied
            attention; s is then sqrt(2 D/H), without which the theorem's constant would not hold.
        locality: initial slope of the first head's penalty m_h (i - j) on the scores, in score per token; the other
            heads' are smaller, down to 1/64 of it, and all are learned. Nearer tokens then count more, and the
            constant is lower and does not grow with the length (``theorems.local_mass``). None for no penalty.

    Raises:
        ValueError: ``heads`` does not divide ``width``, ``columns`` < 1, ``dropout`` is outside [0, 1), or
            ``locality`` is not above 0 or goes with ``causal=False``.

    References: Kim, Papamakarios, Mnih 2021, sec. 3 and Theorem 3.2, arXiv 2006.04710.
    """

    caveat = ""
    weight_methods = ("value_maps",)
    """What depends on the parameters alone (`lipformer.functional.constant_weights`)."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        context: int,
        causal: bool = True,
        dropout: float = 0.0,
        fused: bool = True,
        columns: int = 1,
        locality: float | None = None,
    ):
        super().__init__()
        check_heads(width, heads)
        if columns < 1:
            raise ValueError(f"columns must be at least 1, not {columns}")
        self.heads, self.context, self.causal, self.fused = heads, context, causal, fused
        self.s = math.sqrt(columns * width // heads)
        self.query = projection(width, columns * width)
        self.value = projection(width, width)
        self.out = projection(width, width)
        self.log_slope = log_slopes(locality, heads, causal)
        self.dropout: Dropout | ContractiveDropout = Dropout(dropout)  # the other one where it contracts

    def forward(self, x: Float[Tensor, "*batch N D"], *, fused: bool | None = None) -> Float[Tensor, "*batch N D"]:
        """Attend; ``fused=False`` is the explicit form, differentiable to any order."""
        fused = self.fused if fused is None else fused
        maps = self.value_maps()
        if fused:
            outputs = head_outputs(maps, self.out.weight)
            mixed = fused_tied_l2(x, self.query.weight, outputs, s=self.s, causal=self.causal, slope=self.slope)
            return self.dropout(mixed)
        values = split_heads(self.query(x), self.heads) @ maps.to(x.dtype)
        mixed = self.attention_weights(x).to(values.dtype) @ values
        return self.dropout(self.out(merge_heads(mixed)))

    def attention_scores(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N N"]:
        """Negative squared distances over s, less the penalty, up to a constant of each row, before the mask."""
        origin = x[..., :1, :].detach()  # distances do not depend on it, their rounding does
        queries = split_heads(self.query(x - origin), self.heads)
        scores = l2_scores(queries, queries, self.s)
        return scores if self.slope is None else penalise_distance(scores, self.slope)

    @property
    def slope(self) -> Float[Tensor, "H"] | None:
        """Penalty of each head on the scores of past tokens, in score per token; None for none."""
        return slopes(self.log_slope)

    def value_maps(self) -> Float[Tensor, "H d v"]:
        """M_h = W_h^T W^V_h / s, at least in float32 whatever autocast says."""
        return value_maps(self.query.weight, self.value.weight, self.heads, self.s)

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        r"""Upper bound on the Lipschitz constant, differentiable, in float64.

        The sharpest of this library's theorems for the norm: ``tied_l2_bound_*`` of
        :mod:`lipformer.bounds.theorems`, which are never above Theorem 3.2. Dropout in train mode counts.

        Args:
            p: 2, ``math.inf`` or "mixed".
            length: N for which the bound holds, shorter ones included; None for ``context``.
        """
        p = parse_norm(p)
        length = self.context if length is None else length
        query = split_outputs(self.query.weight.double(), self.heads)
        out = self.out.weight.double().mT
        maps = self._certified_maps()
        bound = theorems.tied_l2_bound(query, maps, out, length, p, self.slope)
        # Weights that are not finite have no constant; nan would pass as a bound in some comparisons.
        return (bound * self.dropout.lipschitz_constant()).nan_to_num(nan=math.inf, posinf=math.inf)

    def _certified_maps(self) -> Tensor:
        """M_h in float64, of which the forward pass uses a rounding."""
        return value_maps(self.query.weight.double(), self.value.weight.double(), self.heads, self.s)
