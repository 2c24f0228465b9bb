r"""Constants of attention by other similarities: kernels, sigmoids, normalised queries and keys.

Legend, in the layout of ``x W``: N tokens, D width, H heads; W^Q_h, W^K_h (D x d), W^V_h (D x v), W^O (E x D,
E = H v); R the radius, a bound on the Euclidean norm of every token; a head's constant L_h is that of the map from
tokens to what the head gathers, before W^O.

For a matrix W that tokens are multiplied by, [W] is its norm from the tokens' norm to the Euclidean one: the 2-norm
for p = 2 and "mixed", and for p = inf the smaller of sqrt(D) |W|_2 and the root of the sum of its squared absolute
column sums. The heads' constants are combined by :func:`~lipformer.theorems.heads.combine_heads`, and for
p = inf, with w_hc the part of column c of W^O that meets head h, by

.. math:: \mathrm{Lip}_\infty(F) \le \max_c \sum_h \|w_{hc}\|_2\, L_h .

All bounds hold under any mask that leaves each token something to attend to. Proofs: docs/mathematics.md, 14.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lipformer.functional import spectral
from lipformer.functional.spectral import Norm, parse_norm
from lipformer.theorems.heads import combine_heads

Radius = float | Float[Tensor, ""]


def sigmoid_bound_on_ball(
    query: Float[Tensor, "H D d"],
    key: Float[Tensor, "H D d"],
    value: Float[Tensor, "H D v"],
    out: Float[Tensor, "E D"],
    *,
    bias: float,
    radius: Radius,
    length: int,
    p: Norm = 2,
) -> Float[Tensor, ""]:
    r"""Constant of sigmoid attention on tokens of norm at most R, the same number for p = 2 and "mixed".

    .. math:: L_h = N \big(s_h [W^V_h] + s'_h R^2 \|W^V_h\|_2 ([A_h] + [A_h^\top])\big),
              \qquad A_h = W^Q_h W_h^{K\top} / \sqrt d

    where the scores x_i A_h x_j + b lie within R^2 |A_h|_2 of b, s_h is the largest value of the sigmoid there and
    s'_h the largest slope. On any ball :math:`L_h \le N \|W^V_h\|_2 (1 + R^2 \|A_h\|_2 / 2)` for p = 2 and "mixed";
    with b = -log N and small R^2 |A_h| it does not grow with N.

    Args:
        query: the W^Q_h.
        key: the W^K_h.
        value: the W^V_h.
        out: W^O.
        bias: b.
        radius: R.
        length: N, or the longest attended span.
        p: 2, ``math.inf`` or "mixed".

    References: ours, docs/mathematics.md, 14. The layer: Ramapuram et al. 2024, arXiv 2409.04431.
    """
    radius = _checked(radius)
    form = query @ key.mT / math.sqrt(query.shape[-1])
    reach = spectral.exact(form) * radius**2
    nearest = (abs(bias) - reach).clamp_min(0)  # to zero, where the slope is largest
    largest, slope = torch.sigmoid(bias + reach), torch.sigmoid(nearest) * torch.sigmoid(-nearest)
    moving_scores = radius**2 * spectral.exact(value) * (_from_tokens(form, p) + _from_tokens(form.mT, p))
    return _side_by_side(length * (largest * _from_tokens(value, p) + slope * moving_scores), out, p)


def qk_norm_bound_on_ball(
    query: Float[Tensor, "H D d"],
    key: Float[Tensor, "H D d"],
    value: Float[Tensor, "H D v"],
    out: Float[Tensor, "E D"],
    *,
    query_gain: Float[Tensor, " d"],
    key_gain: Float[Tensor, " d"],
    eps: float,
    radius: Radius,
    length: int,
    p: Norm = 2,
) -> Float[Tensor, ""]:
    r"""Constant of softmax attention with normalised queries and keys, on tokens of norm at most R.

    .. math:: L_h = \rho [W^V_h] + g R \|W^V_h\|_2 ([W^Q_h] + \rho [W^K_h]),
              \qquad g = \max|\gamma^Q| \max|\gamma^K| / \sqrt\epsilon

    with rho = sqrt(N) for p = 2 and 1 for "mixed" and inf. Normalised means divided by sqrt(|z|^2/d + eps), then
    times gamma. For LayerNorm pass W^Q and W^K with each row's mean over the columns of a head subtracted.

    Args:
        query: the W^Q_h.
        key: the W^K_h.
        value: the W^V_h.
        out: W^O.
        query_gain: gamma^Q.
        key_gain: gamma^K.
        eps: above zero.
        radius: R.
        length: N, or the longest attended span.
        p: 2, ``math.inf`` or "mixed".

    References: ours, docs/mathematics.md, 14. The layer: Dehghani et al. 2023, arXiv 2302.05442.
    """
    radius = _checked(radius)
    gain = query_gain.abs().amax() * key_gain.abs().amax() / math.sqrt(eps)
    spread = gain * radius * spectral.exact(value)
    return _side_by_side(_softmax_heads(query, key, value, spread, length, p), out, p)


def cosine_bound(
    query: Float[Tensor, "H D d"],
    key: Float[Tensor, "H D d"],
    value: Float[Tensor, "H D v"],
    out: Float[Tensor, "E D"],
    *,
    temperature: Float[Tensor, " H"],
    gain: Float[Tensor, " H"],
    eps: float,
    length: int,
    p: Norm = 2,
) -> Float[Tensor, ""]:
    r"""Constant of scaled cosine similarity attention, on all inputs.

    .. math:: L_h = \frac{\nu_h}{\sqrt\epsilon} \big(\rho [W^V_h] + \tau_h [W^Q_h] + \rho \tau_h [W^K_h]\big)

    with rho = sqrt(N) for p = 2 and 1 for "mixed" and inf, which are thus free of N. The constant in common use
    grows like N^2.

    Args:
        query: the W^Q_h.
        key: the W^K_h.
        value: the W^V_h.
        out: W^O.
        temperature: the factors tau_h of the cosines.
        gain: the factors nu_h of the values.
        eps: above zero; added to squared norms.
        length: N, or the longest attended span.
        p: 2, ``math.inf`` or "mixed".

    References: ours, docs/mathematics.md, 14. The layer: Qi et al. 2023, arXiv 2304.09856.
    """
    heads = _softmax_heads(query, key, value, temperature.abs(), length, p)
    return _side_by_side(gain.abs() / math.sqrt(eps) * heads, out, p)


def elu_kernel_bound_on_ball(
    query: Float[Tensor, "H D d"],
    key: Float[Tensor, "H D d"],
    value: Float[Tensor, "H D v"],
    out: Float[Tensor, "E D"],
    *,
    radius: Radius,
    length: int,
    p: Norm = 2,
) -> Float[Tensor, ""]:
    r"""Constant of kernel attention with the features ELU + 1, on tokens of norm at most R, whatever eps.

    .. math:: L_h = \rho\big([W^V_h] + 2R \|W^V_h\|_2 ([W^Q_h] e^{R\|W^Q_h\|_2} + [W^K_h] e^{R\|W^K_h\|_2})\big)

    with rho as in :func:`cosine_bound` and arguments as in :func:`sigmoid_bound_on_ball`.

    References: ours, docs/mathematics.md, 14. The layer: Katharopoulos et al. 2020, arXiv 2006.16236.
    """
    radius = _checked(radius)
    scores = sum(_from_tokens(weight, p) * (radius * spectral.exact(weight)).exp() for weight in (query, key))
    heads = _from_tokens(value, p) + 2 * radius * spectral.exact(value) * scores
    return _side_by_side(_rows(length, p) * heads, out, p)


def relu_kernel_bound_on_ball(
    query: Float[Tensor, "H D d"],
    key: Float[Tensor, "H D d"],
    value: Float[Tensor, "H D v"],
    out: Float[Tensor, "E D"],
    *,
    eps: float,
    radius: Radius,
    length: int,
    p: Norm = 2,
) -> Float[Tensor, ""]:
    r"""Constant of kernel attention with the features ReLU, on tokens of norm at most R.

    .. math:: L_h = \rho\Big([W^V_h] + \frac{2NR^2}{\epsilon} \|W^V_h\|_2
              \big([W^Q_h] \|W^K_h\|_2 + \|W^Q_h\|_2 [W^K_h]\big)\Big)

    with rho as in :func:`cosine_bound`. Where no feature of a query is positive the denominator is eps alone, and the
    constant is really of the order N / eps. Arguments as in :func:`sigmoid_bound_on_ball`; eps above zero.

    References: ours, docs/mathematics.md, 14.
    """
    radius = _checked(radius)
    similarity = _from_tokens(query, p) * spectral.exact(key) + spectral.exact(query) * _from_tokens(key, p)
    heads = _from_tokens(value, p) + 2 * length * radius**2 / eps * spectral.exact(value) * similarity
    return _side_by_side(_rows(length, p) * heads, out, p)


def _softmax_heads(query: Tensor, key: Tensor, value: Tensor, spread: Tensor, length: int, p: Norm) -> Tensor:
    """Heads of a softmax whose scores move by ``spread`` times the queries and keys, in units of the values."""
    rows = _rows(length, p)
    return rows * _from_tokens(value, p) + spread * (_from_tokens(query, p) + rows * _from_tokens(key, p))


def _rows(length: int, p: Norm) -> float:
    """Return the factor by which rows that attend to the same token add up."""
    return math.sqrt(length) if parse_norm(p) == 2 else 1.0


def _from_tokens(weight: Float[Tensor, "H D c"], p: Norm) -> Float[Tensor, " H"]:
    """Return [W], the norm of x -> x W to the Euclidean norm, from the max-norm of x if p is inf, else Euclidean."""
    norm = spectral.exact(weight)
    if parse_norm(p) != math.inf:
        return norm
    return torch.minimum(math.sqrt(weight.shape[-2]) * norm, torch.linalg.vector_norm(weight.abs().sum(-2), dim=-1))


def _side_by_side(constants: Float[Tensor, " H"], out: Float[Tensor, "E D"], p: Norm) -> Float[Tensor, ""]:
    """Return the constant of concatenated heads followed by W^O."""
    if parse_norm(p) != math.inf:
        return combine_heads(constants, out)
    columns = torch.linalg.vector_norm(out.unflatten(0, (len(constants), -1)), dim=-2)
    return (columns * constants[:, None]).sum(0).amax()


def _checked(radius: Radius) -> Tensor:
    radius = torch.as_tensor(radius, dtype=torch.float64)
    if not radius >= 0:
        raise ValueError(f"a radius must not be negative, but is {float(radius)}")
    return radius
