"""Lipschitz constants of activations and of linear maps."""

import math

from jaxtyping import Float
from scipy.optimize import brentq
from torch import Tensor

from lipformer.functional import spectral
from lipformer.functional.spectral import Norm, parse_norm


def activation_bound(name: str) -> float:
    r"""Largest slope of an activation, which is its constant in every norm here.

    .. math:: \text{gelu: } \tfrac12(1 + \mathrm{erf}\,1) + \tfrac{1}{e\sqrt\pi} = 1.1289\dots, \qquad
              \text{silu: } \tfrac{1 + t}2 = 1.0998\dots \text{ with } t \tanh t = 1

    and 1 for the others. gelu is the exact one, :math:`x\Phi(x)`, not its tanh approximation.

    Args:
        name: ``relu``, ``gelu``, ``silu``, ``tanh`` or ``identity``.

    Raises:
        ValueError: another name.

    References: ours, docs/mathematics.md, 11.
    """
    if name not in _SLOPES:
        raise ValueError(f"no Lipschitz constant is known for the activation {name!r}, only for {', '.join(_SLOPES)}")
    return _SLOPES[name]


def linear_bound(weight: Float[Tensor, "out in"], p: Norm) -> Float[Tensor, ""]:
    r"""Constant of :math:`x \mapsto A x + b` applied to each token, exact.

    .. math:: \mathrm{Lip}_2 = \mathrm{Lip}_{mix} = \|A\|_2, \qquad \mathrm{Lip}_\infty = \|A\|_\infty

    Args:
        weight: A, in ``nn.Linear`` layout, (out, in).
        p: 2, ``math.inf`` or "mixed".

    Returns:
        float64; infinity if an entry of A is not finite.
    """
    norm = spectral.inf_norm if parse_norm(p) == math.inf else spectral.exact
    return norm(weight.double()).nan_to_num(nan=math.inf, posinf=math.inf)


def _upward(value: float) -> float:
    """Round up by more than the rounding of a few operations."""
    return value * (1 + 1e-14)


_SLOPES = {
    "relu": 1.0,
    "gelu": _upward((1 + math.erf(1)) / 2 + 1 / (math.e * math.sqrt(math.pi))),
    "silu": _upward((1 + brentq(lambda t: t * math.tanh(t) - 1, 1, 2, xtol=1e-15)) / 2),
    "tanh": 1.0,
    "identity": 1.0,
}
