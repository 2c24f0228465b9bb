r"""How far a row of L2 attention can look, and the constant of one head, with and without a penalty on distance.

Legend: N tokens, t >= 0 the squared distances of a row over their divisor, P its weights, c the largest mean of t.
"""

import math

import torch
from jaxtyping import Float
from scipy.special import lambertw
from torch import Tensor


@torch.compiler.assume_constant_result  # the compiler cannot look into SciPy; the length is not a tensor
def phi_inverse(length: int) -> float:
    r"""Largest mean squared distance :math:`\sum_j P_{ij} t_{ij}` of a row of N tokens, t the negative scores.

    .. math:: c = \varphi^{-1}(N - 1) = W_0\big((N - 1)/e\big), \qquad \varphi(x) = x e^{x+1}

    with W_0 the principal Lambert function; c grows like log N - log log N. It is attained by N - 1 keys at
    t = c + 1. W_0(N/e), which is also used, is slightly larger, so that it is valid too, but it is not the inverse.

    Args:
        length: N, tokens a row may attend to, itself included.

    Raises:
        ValueError: N < 1.

    References: Kim et al. 2021, Theorem 3.2 and its proof, arXiv 2006.04710.
    """
    if length < 1:
        raise ValueError(f"length must be at least 1, not {length}")
    return float(lambertw((length - 1) / math.e).real)


def mean_distance(mass: Float[Tensor, " *shape"]) -> Float[Tensor, " *shape"]:
    r"""Largest mean squared distance of a row whose other tokens carry the weight S.

    .. math:: c = \varphi^{-1}(S) = W_0(S/e)

    With a bias b_ij added to the scores, :math:`P_{ij} \propto e^{b_{ij} - t_{ij}}`, that is
    :math:`S = \sum_{j \ne i} e^{b_{ij} - b_{ii}}`; without one S = N - 1 and this is :func:`phi_inverse`. The other
    steps of every proof here go through unchanged, since b does not depend on the tokens' values. Differentiable.

    Args:
        mass: S, not negative.

    Returns:
        float64; at or above the root, up to rounding.

    References: ours, after Kim et al. 2021, Theorem 3.2; docs/mathematics.md, 8.
    """
    x = mass.double() / math.e
    with torch.no_grad():
        c = x.log1p()
        for _ in range(5):
            c = c / (1 + c) * (1 + (x / c).log())
        c = torch.where(x > 0, c, torch.zeros_like(c))
    # Newton's steps for the convex c e^c - x end at or above the root. Differentiated through, the first has the
    # inverse function's first derivative, the second, as errors are squared, its second and third as well.
    for _ in range(2):
        c = c + (x - c * c.exp()) / ((1 + c) * c.exp())
    return c


def local_mass(slope: Float[Tensor, " H"], length: int) -> Float[Tensor, " H"]:
    r"""Weight of the past tokens under a penalty of :math:`m (i - j)`, of causal attention over N tokens.

    .. math:: S = \sum_{k=1}^{N-1} e^{-mk} = e^{-m}\, \frac{1 - e^{-m(N-1)}}{1 - e^{-m}} < \frac{1}{e^m - 1}

    It stays finite as N grows: with a penalty on distance the constant does not depend on the length at all.

    Args:
        slope: m of each head, above 0.
        length: N.

    Raises:
        ValueError: N < 1.
    """
    if length < 1:
        raise ValueError(f"length must be at least 1, not {length}")
    slope = slope.double()
    vanishing = slope.abs() < 1e-12
    slope = torch.where(vanishing, 1.0, slope)
    mass = (-slope).exp() * torch.expm1(-slope * (length - 1)) / torch.expm1(-slope)
    return torch.where(vanishing, float(length - 1), mass)


def head_constant(length: int, slope: Float[Tensor, " H"] | None = None) -> Float[Tensor, "*H"]:
    r"""Constant 4c + 1 of a head q -> P q in the mixed norm, whatever the scale of q.

    Args:
        length: N, or the longest attended span.
        slope: of each head's penalty on distance, see :func:`local_mass`; None for none.

    Returns:
        float64, one for all heads or one for each.
    """
    return 4 * row_distance(length, slope) + 1


def row_distance(length: int, slope: Float[Tensor, " H"] | None = None) -> Float[Tensor, "*H"]:
    """Largest mean squared distance c of a row, one for all heads or one for each; arguments as above, float64."""
    if slope is None:
        return torch.tensor(phi_inverse(length), dtype=torch.float64)
    return mean_distance(local_mass(slope, length))
