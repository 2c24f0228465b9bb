r"""How Lipschitz constants combine when maps do, in float64 and never rounded down.

Legend: L(f) an upper bound on the Lipschitz constant of f, in a norm that all of a call's arguments share; the sum,
the skip and the composition need no more of a norm than that it is one.

A bound is at least 0, and ``math.inf`` where there is none; nan, the bound of nothing, counts as inf. Each result is a
float64 scalar at or above what real arithmetic would give: an operation that rounds is moved up to the next number.
Gradients pass as if it were not. A constant map stays one whatever follows or precedes it, so 0 times inf is 0.
"""

import math
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

Bound = Float[Tensor, ""] | float


def compose(*bounds: Bound) -> Float[Tensor, ""]:
    r"""Bound of maps applied one after the other; 1 for no map, which is the identity.

    .. math:: L(f_n \circ \dots \circ f_1) = \textstyle\prod_i L(f_i)
    """
    return reduce(_multiply, map(_bound, bounds), _bound(1.0))


def add(*bounds: Bound) -> Float[Tensor, ""]:
    r"""Bound of a sum of maps; 0 for no map, which is the zero map.

    .. math:: L(f_1 + \dots + f_n) = \textstyle\sum_i L(f_i)
    """
    return reduce(_add, map(_bound, bounds), _bound(0.0))


def residual(branch: Bound) -> Float[Tensor, ""]:
    r"""Bound of a skip connection, :math:`L(x + f(x)) = 1 + L(f)`."""
    return add(1.0, branch)


def convex(weight: Bound, skip: Bound, branch: Bound) -> Float[Tensor, ""]:
    r"""Bound of a mean of two maps, at most the larger of theirs.

    .. math:: L\big((1 - a) f + a g\big) = (1 - a) L(f) + a L(g)

    Args:
        weight: a, in [0, 1].
        skip: L(f).
        branch: L(g).

    Raises:
        ValueError: a outside [0, 1].
    """
    weight = torch.as_tensor(weight, dtype=torch.float64)
    if not 0 <= weight <= 1:
        raise ValueError(f"the weight must be in [0, 1], not {float(weight)}")
    rest = _sum_up(torch.ones_like(weight), -weight)
    return add(compose(rest, skip), compose(weight, branch))


def _bound(value: Bound) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64).nan_to_num(nan=math.inf, posinf=math.inf)


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    zero, exact = (a == 0) | (b == 0), (a == 1) | (b == 1)
    # The other factor may be inf, of which neither the product nor its gradient may see anything.
    product = torch.where(zero, torch.ones_like(a), a) * torch.where(zero, torch.ones_like(b), b)
    return torch.where(zero, torch.zeros_like(product), torch.where(exact, product, _up(product)))


def _add(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(a.isinf() | b.isinf(), math.inf, _sum_up(a, b))


def _sum_up(a: Tensor, b: Tensor) -> Tensor:
    """a + b, moved up if it was rounded down; by how much it was is itself computed without rounding (Knuth 1969)."""
    total = a + b
    shared = total - a
    error = (a - (total - shared)) + (b - shared)
    return torch.where(error > 0, _up(total), total)


def _up(x: Tensor) -> Tensor:
    """The next float64, with the gradient of the identity."""
    fixed = x.detach()
    return x + torch.where(fixed.isinf(), 0.0, torch.nextafter(fixed, torch.full_like(fixed, math.inf)) - fixed)
