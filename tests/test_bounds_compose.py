"""The algebra of bounds: what real arithmetic gives, never less, never nan."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipformer.theorems.compose import add, compose, convex, residual

FINITE = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
ANY = st.floats(min_value=0, allow_nan=False) | st.sampled_from([0.0, 1.0, math.inf, 5e-324, 1.7e308])
WEIGHT = st.floats(min_value=0, max_value=1)
ULP = Fraction(1, 2**51)


def not_below(result: torch.Tensor, exact: Fraction) -> bool:
    """At or above the real number, and not by more than rounding explains."""
    value = result.item()
    if math.isinf(value):
        return exact > Fraction(2**1023)
    return exact <= Fraction(value) <= exact * (1 + 8 * ULP) + 8 * Fraction(5e-324)


@given(FINITE, FINITE, FINITE)
def test_never_rounded_down(a, b, c):
    exact = tuple(map(Fraction, (a, b, c)))
    assert not_below(add(a, b, c), sum(exact))
    assert not_below(residual(a), 1 + exact[0])
    product = compose(a, b, c).item()
    assert math.isinf(product) or exact[0] * exact[1] * exact[2] <= Fraction(product)


@given(st.floats(1e-90, 1e90), st.floats(1e-90, 1e90), st.floats(1e-90, 1e90))
def test_a_product_is_no_more_than_rounding_above(a, b, c):
    assert not_below(compose(a, b, c), Fraction(a) * Fraction(b) * Fraction(c))


@given(WEIGHT, st.floats(1e-90, 1e90), st.floats(1e-90, 1e90))
def test_a_mean_is_one(weight, skip, branch):
    w = Fraction(weight)
    assert not_below(convex(weight, skip, branch), (1 - w) * Fraction(skip) + w * Fraction(branch))


def test_results_that_round_to_nearest_from_above_are_moved():
    """Plain float64 gives less than the real value in each of these."""
    product = Fraction(0.1) * Fraction(0.7)
    assert Fraction(0.1 * 0.7) < product <= Fraction(compose(0.1, 0.7).item())
    assert residual(1e-30).item() > 1  # 1.0 + 1e-30 == 1.0
    assert compose(1e-200, 1e-200).item() > 0  # 1e-200 * 1e-200 == 0.0
    assert convex(1e-30, 1.0, 2.0).item() > 1


@given(ANY, ANY, ANY)
def test_nothing_is_nan(a, b, c):
    for combine in (add, compose):
        results = [combine(a, b, c), combine(c, b, a), combine(combine(a, b), c), combine(a, combine(b, c))]
        assert not torch.stack(results).isnan().any()
    assert not convex(0.5, a, b).isnan()


@given(*[st.floats(1e-90, 1e90) | st.sampled_from([0.0, 1.0, math.inf])] * 3)
def test_order_matters_in_the_last_digits_only(a, b, c):
    for combine in (add, compose):
        results = [combine(a, b, c), combine(c, b, a), combine(combine(a, b), c), combine(a, combine(b, c))]
        values = torch.stack(results)
        torch.testing.assert_close(values, values[:1].expand(4), rtol=2e-15, atol=0)


@given(ANY, ANY, ANY, WEIGHT)
def test_monotone(a, b, more, weight):
    larger = max(a, more)
    assert compose(a, b) <= compose(larger, b)
    assert add(a, b) <= add(larger, b)
    assert residual(a) <= residual(larger)
    assert convex(weight, a, b) <= convex(weight, larger, b)


@given(ANY)
def test_identities(a):
    assert compose(a) == compose(1.0, a) == compose(a, 1.0) == a
    assert add(a) == add(0.0, a) == add(a, 0.0) == a
    assert compose(a, 0.0) == compose(0.0, a) == 0  # a constant map, before or after what has no bound
    assert convex(0.0, a, math.inf) == a
    assert convex(1.0, math.inf, a) == a
    assert compose() == 1
    assert add() == 0


def test_what_has_no_bound():
    assert compose(math.inf, 2.0) == add(1.0, math.inf) == residual(math.inf) == math.inf
    assert compose(math.nan, 2.0) == add(math.nan, 1.0) == residual(math.nan) == math.inf
    assert compose(1e300, 1e300) == add(1.7e308, 1.7e308) == math.inf
    assert compose(1e300, 1e300, 0.0) == compose(0.0, math.inf, 1e300, 1e300) == 0


@pytest.mark.parametrize("weight", [-1e-9, 1.0000001, math.nan])
def test_a_weight_outside_of_a_mean(weight):
    with pytest.raises(ValueError, match=r"must be in \[0, 1\]"):
        convex(weight, 1.0, 1.0)


@pytest.mark.parametrize("norm", [2, math.inf, 1])
def test_norms_of_matrices_obey_the_algebra(norm):
    """Of the product, the sum, x + Ax and the mean, the exact norm is never above, and it can be attained."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 50, 4, 4, dtype=torch.float64, generator=generator)
    eye = torch.eye(4, dtype=torch.float64)

    def size(matrix):
        return torch.linalg.matrix_norm(matrix, norm)

    for f, g in zip(a, b, strict=True):
        room = 1 + 1e-14  # the rounding of the matrices and of their norms, of which the algebra knows nothing
        assert size(g @ f) <= compose(size(f), size(g)) * room
        assert size(f + g) <= add(size(f), size(g)) * room
        assert size(eye + f) <= residual(size(f)) * room
        assert size(0.7 * f + 0.3 * g) <= convex(0.3, size(f), size(g)) * room
    torch.testing.assert_close(size(3 * eye @ eye * 2), compose(3.0, 2.0))
    torch.testing.assert_close(size(eye + 3 * eye), residual(3.0))


def test_gradients_are_those_of_real_arithmetic():
    x = torch.tensor([0.3, 0.7], dtype=torch.float64, requires_grad=True)
    bound = convex(x[0], compose(x[0], x[1], 0.1), residual(x[1]))
    (gradient,) = torch.autograd.grad(bound, x)
    a, b = x.tolist()
    expected = [0.1 * b * (1 - 2 * a) + 1 + b, 0.1 * a * (1 - a) + a]
    assert gradient.tolist() == pytest.approx(expected, rel=1e-12)


def test_a_constant_map_gives_no_gradient_of_nan():
    x = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(compose(x, math.inf), x)
    assert gradient == 0
