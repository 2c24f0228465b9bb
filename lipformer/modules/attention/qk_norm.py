"""Dot-product attention of normalised queries and keys."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lipformer.bounds import theorems
from lipformer.functional.attention import dot_product_scores
from lipformer.functional.heads import check_heads, merge_heads, split_heads
from lipformer.functional.precision import at_least_float32
from lipformer.functional.spectral import Norm, parse_norm
from lipformer.modules.attention.projection import certified_heads, projection
from lipformer.modules.attention.scored import SoftmaxAttention
from lipformer.modules.dropout import Dropout


class QKNormAttention(SoftmaxAttention):
    r"""Multi-head softmax self-attention with queries and keys normalised in each head.

    .. math:: F(X) = [P^1 X W^V_1, \dots, P^H X W^V_H] W^O, \qquad
              P^h = \mathrm{softmax}\big(\hat Q_h \hat K_h^\top / \sqrt d\big), \quad
              \hat z = \gamma \odot \frac{z - \mu(z)}{\sqrt{\tfrac1d \|z - \mu(z)\|_2^2 + \epsilon}}

    with d = D/H; gamma, one for queries and one for keys, is shared by the heads. Scores are at most
    :math:`\sqrt d \max|\gamma^Q| \max|\gamma^K|`. Values are not normalised: not Lipschitz, but so on each ball.

    Args:
        width: features of a token, D.
        heads: H, must divide D.
        context: longest sequence, N; used only as the default length of bounds.
        causal: whether token i attends to tokens 0..i only. Padding on the right then needs no mask.
        dropout: probability of dropping an entry of the output.
        fused: whether ``forward`` uses ``scaled_dot_product_attention`` by default.
        centred: whether the mean mu(z) is subtracted (LayerNorm without shift), or not (RMSNorm, mu = 0).
        eps: above zero.

    Raises:
        ValueError: ``heads`` does not divide ``width``, ``eps`` not above zero, or ``dropout`` outside [0, 1).

    References: Dehghani et al. 2023, arXiv 2302.05442 (LayerNorm); Henry et al. 2020, arXiv 2010.04245.
    """

    caveat = "not Lipschitz: values are not bounded"

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        context: int,
        causal: bool = True,
        dropout: float = 0.0,
        fused: bool = True,
        centred: bool = True,
        eps: float = 1e-5,
    ):
        super().__init__()
        check_heads(width, heads)
        if not eps > 0:
            raise ValueError(f"eps must be above 0, not {eps}")
        self.heads, self.context, self.causal, self.fused = heads, context, causal, fused
        self.centred, self.eps = centred, eps
        self.query = projection(width, width)
        self.key = projection(width, width)
        self.value = projection(width, width)
        self.out = projection(width, width)
        self.query_gain = nn.Parameter(torch.ones(width // heads))
        self.key_gain = nn.Parameter(torch.ones(width // heads))
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "*batch N D"], *, fused: bool | None = None) -> Float[Tensor, "*batch N D"]:
        """Attend; ``fused=False`` is the explicit form, differentiable to any order."""
        fused = self.fused if fused is None else fused
        values = split_heads(self.value(x), self.heads)
        if fused:
            mixed = F.scaled_dot_product_attention(*self._normalised(x), values, is_causal=self.causal)
        else:
            mixed = self.attention_weights(x).to(values.dtype) @ values
        return self.dropout(self.out(merge_heads(mixed)))

    def attention_scores(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N N"]:
        """Scaled dot products of the normalised queries and keys, before the mask."""
        return dot_product_scores(*self._normalised(x))

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """Infinity, in every norm: the weights move at a finite rate, but the values they mix are not bounded."""
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
        if self.centred:
            weights |= {name: weights[name] - weights[name].mean(-1, keepdim=True) for name in ("query", "key")}
        bound = theorems.qk_norm_bound_on_ball(
            **weights,
            query_gain=self.query_gain.double(),
            key_gain=self.key_gain.double(),
            eps=self.eps,
            radius=radius,
            length=length,
            p=p,
        )
        return (bound * self.dropout.lipschitz_constant()).nan_to_num(nan=math.inf, posinf=math.inf)

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
