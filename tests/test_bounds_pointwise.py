"""Slopes of activations against a dense grid and high precision; linear maps against what they do."""

import math

import pytest
import torch
import torch.nn.functional as F

from lipformer import theorems

FUNCTIONS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh, "identity": lambda x: x}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_slope_is_larger_and_one_attains_it(name):
    x = torch.linspace(-40, 40, 800_001, dtype=torch.float64, requires_grad=True)
    (slopes,) = torch.autograd.grad(FUNCTIONS[name](x).sum(), x)
    constant = theorems.activation_bound(name)
    assert slopes.abs().max() <= constant
    assert slopes.abs().max() >= constant * (1 - 1e-8)


def test_closed_forms_are_rounded_up():
    """Against fifty digits: gelu's slope is steepest at sqrt(2), silu's at 2t with t tanh t = 1."""
    mpmath = pytest.importorskip("mpmath")  # torch brings it along, by way of sympy
    with mpmath.workdps(50):
        gelu = mpmath.diff(lambda y: y * mpmath.ncdf(y), mpmath.sqrt(2))
        t = mpmath.findroot(lambda y: y * mpmath.tanh(y) - 1, 1.2)
        silu = mpmath.diff(lambda y: y / (1 + mpmath.exp(-y)), 2 * t)
        for name, slope in (("gelu", gelu), ("silu", silu)):
            assert slope <= theorems.activation_bound(name) <= slope * (1 + mpmath.mpf(10) ** -13)


def test_unknown_activations_are_refused():
    with pytest.raises(ValueError, match="'softplus', only for relu, gelu, silu, tanh, identity"):
        theorems.activation_bound("softplus")


def test_linear_bound_attains_in_each_norm_and_tells_rows_from_columns():
    weight = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.0, 0.0]], dtype=torch.float64)
    assert theorems.linear_bound(weight, math.inf) == 6  # of x = (1, -1, 1)
    assert theorems.linear_bound(weight.mT, math.inf) == 3
    _, sizes, inputs = torch.linalg.svd(weight)
    for p in (2, "mixed"):
        assert theorems.linear_bound(weight, p).item() == pytest.approx((weight @ inputs[0]).norm().item(), rel=1e-14)
    assert sizes[0] < 6


def test_linear_bound_is_float64_and_never_nan():
    assert theorems.linear_bound(torch.ones(2, 3), 2).dtype == torch.float64
    for broken in (math.nan, math.inf):
        for p in (2, math.inf, "mixed"):
            assert theorems.linear_bound(torch.tensor([[1.0, broken]]), p) == math.inf
    with pytest.raises(ValueError, match="p must be"):
        theorems.linear_bound(torch.ones(2, 2), 1)
