"""Constants of the other similarities: where they are attained, how they grow, which of them need what."""

import math

import pytest
import torch
from jacobians import NORMS, jacobian

from lipformer import theorems
from lipformer.functional import spectral
from lipformer.modules.attention import CosineAttention, KernelAttention, SigmoidAttention

P = [2, math.inf, "mixed"]


def unit(heads=1, width=1):
    """Weights of ones: every norm is one where width and heads are."""
    one = torch.ones(heads, width, width // heads, dtype=torch.float64)
    return {"query": one, "key": one, "value": one, "out": torch.ones(width, width, dtype=torch.float64)}


def cosine(length, p, eps=0.25, **weights):
    ones = torch.ones(1, dtype=torch.float64)
    options = {"temperature": 3 * ones, "gain": 2 * ones, "eps": eps, "length": length, "p": p}
    return theorems.cosine_bound(**{**unit(), **weights}, **options)


def test_cosine_by_hand():
    """nu / sqrt(eps) (rho + tau + rho tau) with nu = 2, tau = 3."""
    assert cosine(9, "mixed") == pytest.approx(2 / 0.5 * (1 + 3 + 3))
    assert cosine(9, math.inf) == pytest.approx(2 / 0.5 * (1 + 3 + 3))
    assert cosine(9, 2) == pytest.approx(2 / 0.5 * (3 + 3 + 9))


def test_cosine_is_free_of_the_length_but_in_the_2_norm():
    for p in ("mixed", math.inf):
        assert cosine(1, p) == cosine(10_000, p)
    assert 9 < cosine(10_000, 2) / cosine(100, 2) < 10, "sqrt(N), nearly"


def test_cosine_at_the_origin_has_the_slope_of_its_normalisation():
    """One token at zero: the derivative is nu eps^(-1/2) W^V W^O, so the bound must grow as fast."""
    torch.manual_seed(0)
    for eps in (1.0, 1e-2, 1e-4):
        layer = CosineAttention(4, 1, context=1, temperature=1e-3, gain=2.0, eps=eps).double()
        jac = jacobian(layer, torch.zeros(1, 4, dtype=torch.float64))
        expected = 2 / math.sqrt(eps) * layer.out.weight @ layer.value.weight
        torch.testing.assert_close(jac[0, :, 0], expected)
        ratio = NORMS["mixed"](jac) / layer.lipschitz_bound("mixed")
        product = spectral.exact(expected) / (
            2 / math.sqrt(eps) * spectral.exact(layer.out.weight) * spectral.exact(layer.value.weight)
        )
        assert 0.99 * product < ratio <= 1


def test_sigmoid_on_any_ball_is_below_its_worst_case():
    weights = {name: torch.randn(w.shape, dtype=torch.float64) for name, w in unit(2, 4).items()}
    form = weights["query"] @ weights["key"].mT / math.sqrt(2)
    for radius in (0.1, 1.0, 10.0):
        heads = 7 * spectral.exact(weights["value"]) * (1 + radius**2 * spectral.exact(form) / 2)
        worst = spectral.exact(weights["out"]) * heads.norm()
        for p in (2, "mixed"):
            bound = theorems.sigmoid_bound_on_ball(**weights, bias=-2.0, radius=radius, length=7, p=p)
            assert bound <= worst * (1 + 1e-12)


def test_sigmoid_with_its_bias_does_not_grow_with_the_length_for_small_scores():
    bounds = [
        theorems.sigmoid_bound_on_ball(**unit(), bias=-math.log(n), radius=0.3, length=n, p="mixed")
        for n in (10, 1000, 100_000)
    ]
    assert bounds[0] < bounds[1] < bounds[2] < 1.3
    fixed = [
        theorems.sigmoid_bound_on_ball(**unit(), bias=-2.0, radius=0.3, length=n, p="mixed") for n in (10, 100_000)
    ]
    assert fixed[1] == pytest.approx(1e4 * fixed[0])


def test_sigmoid_is_attained_by_equal_tokens():
    """Zero queries: every weight is sigmoid(b), and N equal steps of the values add up."""
    layer = SigmoidAttention(1, 1, context=4, causal=False).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(1)
        layer.query.weight.zero_()
    jac = jacobian(layer, torch.randn(4, 1, dtype=torch.float64))
    for p in P:
        torch.testing.assert_close(NORMS[p](jac), layer.lipschitz_bound_on_ball(5.0, p))


def test_relu_kernel_really_has_a_slope_of_one_over_eps():
    """A query just above zero: slope sum_j phi(k_j) v_j / eps; the bound is within a small factor of it."""
    for eps in (1e-2, 1e-4):
        layer = KernelAttention(1, 1, context=3, features="relu", eps=eps).double()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.fill_(1)
        x = torch.tensor([[1.0], [1.0], [1e-12]], dtype=torch.float64)
        slope = jacobian(layer, x)[2, 0, 2, 0].detach()
        assert slope == pytest.approx(2 / eps, rel=1e-6)
        assert slope <= layer.lipschitz_bound_on_ball(1.0, "mixed") <= 10 * slope


def test_elu_kernel_needs_no_eps_and_relu_does():
    options = {"radius": 1.0, "length": 5, "p": 2}
    assert theorems.elu_kernel_bound_on_ball(**unit(), **options).isfinite()
    assert theorems.relu_kernel_bound_on_ball(**unit(), **options, eps=1e-300) > 1e299


@pytest.mark.parametrize("p", P)
def test_a_ball_without_limit_has_no_constant(p):
    for layer in (SigmoidAttention(4, 2, context=3), KernelAttention(4, 2, context=3)):
        assert layer.lipschitz_bound_on_ball(math.inf, p) == math.inf


def test_the_max_norm_takes_the_smaller_of_two_norms():
    """Of the identity both are sqrt(D); of a single entry it is the column sum, one."""
    wide = {**unit(), "out": torch.eye(4, dtype=torch.float64)}
    eye = {**wide, **{name: torch.eye(4, dtype=torch.float64)[None] for name in ("query", "key", "value")}}
    assert cosine(1, math.inf, **eye) == pytest.approx(2 / 0.5 * 7 * 2)
    sparse = torch.zeros(1, 4, 4, dtype=torch.float64)
    sparse[0, 0, 0] = 1
    single = {**wide, **dict.fromkeys(("query", "key", "value"), sparse)}
    assert cosine(1, math.inf, **single) == pytest.approx(2 / 0.5 * 7 * 1)
