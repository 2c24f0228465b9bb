r"""Lipschitz constants of the normalisations of a token's features, all of them exact.

Legend: D width, gamma the learned scale, C = I - 11^T / D the projection that subtracts the mean. All these maps act
on each token by itself, so the constants in the 2-norm and in the mixed norm are those of one token's Euclidean
norm, and the one in the inf-norm is that of its max-norm. A layer without a learned scale passes ones.

A scale that is not finite has the constant infinity. Proofs: docs/mathematics.md, 10.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lipformer.functional import spectral
from lipformer.functional.spectral import Norm, parse_norm


def layer_norm_bound(weight: Float[Tensor, " D"], eps: float, p: Norm) -> Float[Tensor, ""]:
    r"""Constant of layer normalisation; nothing bounds it but eps.

    .. math:: \mathrm{Lip}_2 = \frac{\|\mathrm{diag}(\gamma)\, C\|_2}{\sqrt\epsilon}, \qquad
              \mathrm{Lip}_\infty = \frac{\max|\gamma|}{\sqrt\epsilon} \max_{1 \le m \le D} h(a_m, b_m)

    with :math:`a_m = 2\frac{D-m}{D}`, :math:`b_m = \frac{\sqrt{(D-1)m(D-m)} - (D-m)}{D}` and
    :math:`h(a, b) = \max_{0\le r\le1} \sqrt{1-r}\,(a + br)`. Both are attained (the 2-norm by constant tokens). In the
    inf-norm the maximum is 2(D-1)/D up to D = 57 and then grows like 0.19 sqrt(D).

    Args:
        weight: gamma.
        eps: added to the variance; 0 gives infinity.
        p: 2, ``math.inf`` or "mixed".

    References: the 2-norm with max\|gamma\| instead is Kim et al. 2021, sec. 4, arXiv 2006.04710; the exact
    constants are ours, docs/mathematics.md, 10.
    """
    gamma = weight.double()
    width = gamma.shape[-1]
    if parse_norm(p) == math.inf:
        left = torch.arange(width, dtype=torch.float64)  # D - m
        a = 2 * left / width
        b = (((width - 1) * (width - left) * left).sqrt() - left) / width
        return _over_root(gamma.abs().amax() * _largest_on_interval(a, b).amax().item(), eps)
    return _over_root(_centered_norm(gamma), eps)


def layer_norm_row_sum_bound(weight: Float[Tensor, " D"], eps: float) -> Float[Tensor, ""]:
    r"""Bound of layer normalisation in the inf-norm by the absolute row sums of its Jacobian, term by term; not sharp.

    .. math:: \mathrm{Lip}_\infty \le \frac{\max|\gamma|}{\sqrt\epsilon}
              \Big( 2\frac{D-1}{D} + \frac{\sqrt D - 1}{3\sqrt 3} \Big)

    :func:`layer_norm_bound` is the constant itself; this is what bounding the two terms of a row each by itself gives.

    Args:
        weight: gamma.
        eps: added to the variance; 0 gives infinity.

    References: the argument is that of Kim et al. 2021, sec. 4, arXiv 2006.04710; the form is ours,
    docs/mathematics.md, 10.
    """
    width = weight.shape[-1]
    sums = 2 * (width - 1) / width + (math.sqrt(width) - 1) / (3 * math.sqrt(3))
    return _over_root(weight.double().abs().amax() * sums, eps)


def rms_norm_bound(weight: Float[Tensor, " D"], eps: float, p: Norm) -> Float[Tensor, ""]:
    r"""Constant of division by the root mean square; nothing bounds it but eps.

    .. math:: \mathrm{Lip}_2 = \frac{\max|\gamma|}{\sqrt\epsilon}, \qquad
              \mathrm{Lip}_\infty = \frac{\max|\gamma|}{\sqrt\epsilon}\, h\big(1, \tfrac{\sqrt D - 1}2\big)

    with h as in :func:`layer_norm_bound`; h = 1 up to D = 4. Both are attained, the 2-norm by a token of zeros.
    Arguments as there.

    References: ours, docs/mathematics.md, 10.
    """
    gamma = weight.double()
    growth = 1.0
    if parse_norm(p) == math.inf:
        one = torch.ones(1, dtype=torch.float64)
        growth = _largest_on_interval(one, one * (math.sqrt(gamma.shape[-1]) - 1) / 2).item()
    return _over_root(gamma.abs().amax() * growth, eps)


def center_norm_bound(weight: Float[Tensor, " D"], p: Norm) -> Float[Tensor, ""]:
    r"""Constant of the linear map :math:`x \mapsto \gamma \odot \frac{D}{D-1}(x - \bar x)`, whatever is added to it.

    .. math:: \mathrm{Lip}_2 = \tfrac{D}{D-1} \|\mathrm{diag}(\gamma)\, C\|_2 \le \tfrac{D}{D-1} \max|\gamma|, \qquad
              \mathrm{Lip}_\infty = 2 \max|\gamma|

    Args:
        weight: gamma.
        p: 2, ``math.inf`` or "mixed".

    Raises:
        ValueError: D = 1, where the map is not defined.

    References: the map is LipsFormer's, Qi et al. 2023, arXiv 2304.09856; the constants are ours.
    """
    gamma = weight.double()
    width = gamma.shape[-1]
    if width < 2:
        raise ValueError("CenterNorm needs a width of at least 2: it divides by width - 1")
    if parse_norm(p) == math.inf:
        return _finite_or_inf(2 * gamma.abs().amax())
    return _finite_or_inf(width / (width - 1) * _centered_norm(gamma))


def act_norm_bound(scale: Float[Tensor, " D"], p: Norm) -> Float[Tensor, ""]:
    r"""Constant of :math:`x \mapsto s \odot x + \beta` in each of the norms, :math:`\max|s|`.

    Args:
        scale: s, not its logarithm.
        p: 2, ``math.inf`` or "mixed".
    """
    parse_norm(p)
    return _finite_or_inf(scale.double().abs().amax())


def _centered_norm(gamma: Tensor) -> Tensor:
    """2-norm of diag(gamma) (I - 11^T / D)."""
    return spectral.exact(gamma.diag() - gamma[:, None] / gamma.shape[-1])


def _largest_on_interval(a: Tensor, b: Tensor) -> Tensor:
    """Maximum of sqrt(1 - r) (a + b r) over 0 <= r <= 1, elementwise, for a >= 0.

    The derivative vanishes at r = (2b - a) / (3b), where a + b r = 2(a + b)/3 and 1 - r = (a + b)/(3b).
    """
    inside = 2 * b > a
    b = torch.where(inside, b, torch.ones_like(b))
    return torch.where(inside, 2 * (a + b) / 3 * ((a + b) / (3 * b)).sqrt(), a)


def _over_root(norm: Tensor, eps: float) -> Tensor:
    if eps < 0:
        raise ValueError(f"eps must not be negative, not {eps}")
    return _finite_or_inf(norm / math.sqrt(eps) if eps > 0 else torch.full_like(norm, math.inf))


def _finite_or_inf(bound: Tensor) -> Tensor:
    """Nan, of a weight that is not finite, would pass as a bound in some comparisons."""
    return bound.nan_to_num(nan=math.inf, posinf=math.inf)
