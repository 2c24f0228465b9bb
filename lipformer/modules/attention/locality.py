"""The penalty on distance of an L2 attention layer: a learned slope for each head."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

RANGE = 64.0
"""Ratio of the largest initial slope, the first head's, to the smallest, the last's."""
LARGEST = 100.0
"""Largest slope, in score per token: small beside the largest number of every precision, also times a distance."""


class _WhereCausal(float):
    """See `where_causal`."""


def where_causal(default: float | None) -> float | None:
    """Return a default that applies only if attention is causal.

    The same number given explicitly is refused if attention is not causal.
    """
    return None if default is None else _WhereCausal(default)


def log_slopes(locality: float | None, heads: int, causal: bool) -> nn.Parameter | None:
    """Logarithms of the initial slopes, geometrically spaced; None without a penalty.

    Args:
        locality: slope of the first head, above 0, in score per token; None for no penalty.
        heads: H.
        causal: whether attention is causal.

    Raises:
        ValueError: ``locality`` was given, and attention is not causal (the fused form, and the constant, count on
            past tokens only).
    """
    if locality is None or (not causal and isinstance(locality, _WhereCausal)):
        return None
    if not causal:
        raise ValueError("locality needs causal attention: take causal=True, or locality=None")
    ratio = torch.linspace(0, 1, heads)
    return nn.Parameter((locality * RANGE**-ratio).log())


def slopes(log_slope: Float[Tensor, " H"] | None) -> Float[Tensor, " H"] | None:
    """The slopes, kept finite: from `LARGEST` on a token sees itself alone, to e^-100, whatever the slope."""
    return None if log_slope is None else log_slope.clamp_max(math.log(LARGEST)).exp()
