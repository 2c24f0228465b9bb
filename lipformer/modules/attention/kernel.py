"""Attention by a product of positive features instead of a softmax, linear in the number of tokens."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipformer.bounds import theorems
from lipformer.functional.heads import check_heads, merge_heads, split_heads
from lipformer.functional.kernel import FEATURES, kernel_attention, kernel_weights
from lipformer.functional.spectral import Norm, parse_norm
from lipformer.modules.attention.projection import certified_heads, projection
from lipformer.modules.dropout import Dropout


class KernelAttention(nn.Module):
    r"""Multi-head kernel self-attention. Not Lipschitz, although its features are.

    .. math:: F(X) = [P^1 X W^V_1, \dots, P^H X W^V_H] W^O, \qquad
              P^h_{ij} = \frac{\phi(q_i) \cdot \phi(k_j)}{\epsilon + \sum_l \phi(q_i) \cdot \phi(k_l)}

    with phi = max(x, 0) or ELU(x) + 1 entry by entry. Rows sum to less than one: by a share eps of the denominator,
    all of it where no feature is positive (a token without a positive query gets zero, never nan). phi has slope one,
    yet a token that stays where it is while the others move away, with their values, has a derivative without limit.

    Args:
        width: features of a token, D.
        heads: H, must divide D.
        context: longest sequence, N; used only as the default length of bounds.
        causal: whether token i attends to tokens 0..i only. Padding on the right then needs no mask.
        dropout: probability of dropping an entry of the output. Weights are never dropped: the linear form has none.
        fused: whether ``forward`` uses the form that is linear in N by default.
        features: ``relu`` or ``elu``.
        eps: added to the denominators, above zero.

    Raises:
        ValueError: ``heads`` does not divide ``width``, unknown ``features``, ``eps`` not above zero, or ``dropout``
            outside [0, 1).

    References: Katharopoulos et al. 2020, arXiv 2006.16236 (ELU + 1, the linear form). For both as a remedy of
        instability see docs/mathematics.md, 14.
    """

    caveat = "not Lipschitz: weights of a fixed token meet values without limit"

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        context: int,
        causal: bool = True,
        dropout: float = 0.0,
        fused: bool = True,
        features: str = "elu",
        eps: float = 1e-6,
    ):
        super().__init__()
        check_heads(width, heads)
        if features not in FEATURES:
            raise ValueError(f"features={features!r}: it must be one of {', '.join(FEATURES)}")
        if not eps > 0:
            raise ValueError(f"eps must be above 0, not {eps}")
        self.heads, self.context, self.causal, self.fused = heads, context, causal, fused
        self.features, self.eps = features, eps
        self.query = projection(width, width)
        self.key = projection(width, width)
        self.value = projection(width, width)
        self.out = projection(width, width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "*batch N D"], *, fused: bool | None = None) -> Float[Tensor, "*batch N D"]:
        """Attend in O(N); ``fused=False`` is the explicit form, with its N x N matrix."""
        fused = self.fused if fused is None else fused
        values = split_heads(self.value(x), self.heads)
        if fused:
            mixed = kernel_attention(*self._featured(x), values, eps=self.eps, causal=self.causal)
        else:
            mixed = self.attention_weights(x).to(values.dtype) @ values
        return self.dropout(self.out(merge_heads(mixed)))

    def attention_weights(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N N"]:
        """P; each row sums to less than one."""
        return kernel_weights(*self._featured(x), eps=self.eps, causal=self.causal)

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """Infinity, in every norm: the weights of a token of fixed size depend on the directions of the others."""
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
        weights = certified_heads(self)
        if self.features == "relu":
            bound = theorems.relu_kernel_bound_on_ball(**weights, eps=self.eps, radius=radius, length=length, p=p)
        else:
            bound = theorems.elu_kernel_bound_on_ball(**weights, radius=radius, length=length, p=p)
        return (bound * self.dropout.lipschitz_constant()).nan_to_num(nan=math.inf, posinf=math.inf)

    def _featured(self, x: Tensor) -> tuple[Tensor, Tensor]:
        phi = FEATURES[self.features]
        return phi(split_heads(self.query(x), self.heads)), phi(split_heads(self.key(x), self.heads))
