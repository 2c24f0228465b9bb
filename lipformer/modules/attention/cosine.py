"""Scaled cosine similarity attention: Lipschitz on all inputs, by a smoothed normalisation of q, k and v."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lipformer.bounds import theorems
from lipformer.functional.heads import check_heads, merge_heads, split_heads
from lipformer.functional.precision import at_least_float32
from lipformer.functional.spectral import Norm, parse_norm
from lipformer.modules.attention.projection import certified_heads, projection
from lipformer.modules.attention.scored import SoftmaxAttention
from lipformer.modules.dropout import Dropout


class CosineAttention(SoftmaxAttention):
    r"""Multi-head scaled cosine similarity self-attention.

    .. math:: F(X) = [\nu_1 P^1 \hat V_1, \dots, \nu_H P^H \hat V_H] W^O, \qquad
              P^h = \mathrm{softmax}\big(\tau_h \hat Q_h \hat K_h^\top\big), \quad
              \hat z = \frac{z}{\sqrt{\|z\|_2^2 + \epsilon}}

    with queries, keys and values of each token normalised in each head; tau_h > 0 and nu_h > 0 are learned, as
    softplus of parameters. All that a head gathers has norm below nu_h, and the normalisation has slope
    :math:`\epsilon^{-1/2}` at zero: the constant grows like that, so eps should be as large as tokens allow.

    Args:
        width: features of a token, D.
        heads: H, must divide D.
        context: longest sequence, N; used only as the default length of :meth:`lipschitz_bound`.
        causal: whether token i attends to tokens 0..i only. Padding on the right then needs no mask.
        dropout: probability of dropping an entry of the output.
        fused: whether ``forward`` uses ``scaled_dot_product_attention`` by default.
        temperature: initial tau_h, above zero.
        gain: initial nu_h, above zero.
        eps: above zero.

    Raises:
        ValueError: ``heads`` does not divide ``width``; ``temperature``, ``gain`` or ``eps`` not above zero;
            ``dropout`` outside [0, 1).

    References: Qi et al. 2023 (LipsFormer), arXiv 2304.09856.
    """

    caveat = ""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        context: int,
        causal: bool = True,
        dropout: float = 0.0,
        fused: bool = True,
        temperature: float = 10.0,
        gain: float = 1.0,
        eps: float = 1e-3,
    ):
        super().__init__()
        check_heads(width, heads)
        for name, number in (("temperature", temperature), ("gain", gain), ("eps", eps)):
            if not number > 0:
                raise ValueError(f"{name} must be above 0, not {number}")
        self.heads, self.context, self.causal, self.fused = heads, context, causal, fused
        self.eps = eps
        self.query = projection(width, width)
        self.key = projection(width, width)
        self.value = projection(width, width)
        self.out = projection(width, width)
        self.raw_temperature = nn.Parameter(torch.full((heads,), _inverse_softplus(temperature)))
        self.raw_gain = nn.Parameter(torch.full((heads,), _inverse_softplus(gain)))
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "*batch N D"], *, fused: bool | None = None) -> Float[Tensor, "*batch N D"]:
        """Attend; ``fused=False`` is the explicit form, differentiable to any order."""
        fused = self.fused if fused is None else fused
        values = self._normalised(self.value, x, self.raw_gain)
        if fused:
            query, key = self._normalised(self.query, x, self.raw_temperature), self._normalised(self.key, x)
            mixed = F.scaled_dot_product_attention(query, key, values, is_causal=self.causal, scale=1.0)
        else:
            mixed = self.attention_weights(x).to(values.dtype) @ values
        return self.dropout(self.out(merge_heads(mixed)))

    def attention_scores(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N N"]:
        """Similarities of the normalised queries and keys, times the heads' tau_h, before the mask."""
        return self._normalised(self.query, x, self.raw_temperature) @ self._normalised(self.key, x).mT

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """Upper bound on the Lipschitz constant, differentiable, in float64: ``theorems.cosine_bound``.

        Args:
            p: 2, ``math.inf`` or "mixed".
            length: N for which the bound holds, shorter ones included; None for ``context``.
        """
        p, length = parse_norm(p), self.context if length is None else length
        bound = theorems.cosine_bound(
            **certified_heads(self),
            temperature=F.softplus(self.raw_temperature.double()),
            gain=F.softplus(self.raw_gain.double()),
            eps=self.eps,
            length=length,
            p=p,
        )
        return (bound * self.dropout.lipschitz_constant()).nan_to_num(nan=math.inf, posinf=math.inf)

    def _normalised(self, linear: nn.Linear, x: Tensor, raw_factor: Tensor | None = None) -> Tensor:
        """Return normalised projections of all heads, times the heads' factors; at least in float32, then cast back."""
        tokens = split_heads(linear(x), self.heads)
        wide = at_least_float32(tokens)
        wide = wide * (wide.square().sum(-1, keepdim=True) + self.eps).rsqrt()
        if raw_factor is not None:
            wide = wide * F.softplus(raw_factor.to(wide.dtype))[:, None, None]
        return wide.to(tokens.dtype)


def _inverse_softplus(y: float) -> float:
    """Return the x with log(1 + e^x) = y."""
    return y + math.log(-math.expm1(-y))
