"""Constants of the normalisations: attained where the theorem says, and never exceeded."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lipformer import theorems
from lipformer.bounds.empirical import steepest_token

F64 = torch.float64
WIDTHS = (1, 2, 3, 4, 7, 16, 57, 80)


def layer_norm(gamma, eps):
    return lambda x: F.layer_norm(x, gamma.shape, gamma, eps=eps)


def rms_norm(gamma, eps):
    return lambda x: F.rms_norm(x, gamma.shape, gamma, eps=eps)


def center_norm(gamma, eps):
    return lambda x: gamma * gamma.numel() / (gamma.numel() - 1) * (x - x.mean(-1, keepdim=True))


def act_norm(gamma, eps):
    return lambda x: gamma * x


def bound(norm, gamma, eps, p):
    if norm in (center_norm, act_norm):
        return {center_norm: theorems.center_norm_bound, act_norm: theorems.act_norm_bound}[norm](gamma, p)
    return {layer_norm: theorems.layer_norm_bound, rms_norm: theorems.rms_norm_bound}[norm](gamma, eps, p)


NORMALISATIONS = pytest.mark.parametrize("norm", [layer_norm, rms_norm, center_norm, act_norm])


def steepest(function, x, p):
    """Largest norm of the D x D Jacobians at a batch (count, D) of tokens."""
    jac = torch.func.vmap(torch.func.jacrev(function))(x)
    norms = jac.abs().sum(-1).amax(-1) if p == math.inf else torch.linalg.matrix_norm(jac, 2)
    return norms.max()


def tokens(generator, count, width, eps):
    """Of all sizes beside sqrt(eps), a third with an outlier, a third with a common offset."""
    x = torch.randn(count, width, generator=generator, dtype=F64)
    x[::3, 0] *= 30
    x = x * math.sqrt(eps) * 10 ** (6 * torch.rand(count, 1, generator=generator, dtype=F64) - 3)
    x[1::3] += 5
    return x


@NORMALISATIONS
@pytest.mark.parametrize("p", [2, math.inf])
def test_random_jacobians_obey(norm, p):
    generator = torch.Generator().manual_seed(0)
    for width in WIDTHS[norm is center_norm :]:
        for eps in (1e-5, 1.0):
            gamma = torch.randn(width, generator=generator, dtype=F64) * 10 ** torch.randn(
                (), generator=generator, dtype=F64
            )
            gamma[0] *= 5
            reached = steepest(norm(gamma, eps), tokens(generator, 20 + 600 // width, width, eps), p)
            assert reached <= bound(norm, gamma, eps, p) * (1 + 1e-9)


@NORMALISATIONS
@pytest.mark.parametrize("p", [2, math.inf])
def test_ascent_does_not_exceed(norm, p):
    generator = torch.Generator().manual_seed(1)
    for width in (3, 12):
        x = tokens(generator, 20, width, 1.0).requires_grad_()
        gamma = torch.randn(width, generator=generator, dtype=F64).requires_grad_()
        optimizer = torch.optim.Adam([x, gamma], lr=0.1)
        for _ in range(15):
            jac = torch.func.vmap(torch.func.jacrev(norm(gamma, 1.0)))(x)
            norms = jac.abs().sum(-1).amax(-1) if p == math.inf else torch.linalg.matrix_norm(jac, 2)
            ratios = norms / bound(norm, gamma, 1.0, p)
            assert ratios.max() <= 1 + 1e-9
            optimizer.zero_grad()
            ratios.clamp_min(1e-300).log().sum().neg().backward()
            optimizer.step()


@NORMALISATIONS
def test_the_2_norm_is_attained(norm):
    """By tokens near zero (any token, for the linear ones); sharper than max|gamma| where the mean is taken off."""
    gamma = torch.tensor([3.0, 0.1, -0.2, 0.3], dtype=F64)
    for p in (2, "mixed"):
        reached = steepest(norm(gamma, 1e-5), torch.full((1, 4), 1e-9, dtype=F64), 2)
        assert reached.item() == pytest.approx(bound(norm, gamma, 1e-5, p).item(), rel=1e-9)
    assert (bound(norm, gamma, 1.0, 2) < 3) == (norm is layer_norm)


def extremal(width, negative):
    """Unit w of mean zero: the first entry a, `negative` equal entries below zero, the rest equal, for the best a."""
    first = torch.eye(width, dtype=F64)[0]
    group = (torch.arange(width) <= negative).double()
    p, q = first - 1 / width, group.mean() - group  # maximise <w, p><w, q>: halfway between the two
    w = p / p.norm() + q / q.norm()
    return w / w.norm()


@pytest.mark.parametrize("width", WIDTHS[1:])
def test_layer_norm_attains_the_inf_norm(width):
    gamma = torch.ones(width, dtype=F64)
    gamma[0] = -2
    eps = 0.01
    shares = torch.linspace(0, 0.9999, 2000, dtype=F64)[:, None]  # r = variance / (variance + eps)
    sizes = (width * eps * shares / (1 - shares)).sqrt()
    groups = [extremal(width, negative) for negative in range(1, width - 1)]
    best = steepest(layer_norm(gamma, eps), torch.zeros(1, width, dtype=F64), math.inf)
    for w in groups:
        # The first row alone, in closed form, since only it is needed: the layer's own Jacobian checks the best one.
        gradient = (torch.eye(width, dtype=F64)[0] - 1 / width - shares * w[0] * w).abs().sum(-1)
        k = (gradient * (1 - shares[:, 0]).sqrt()).argmax()
        best = max(best, steepest(layer_norm(gamma, eps), (sizes[k] * w)[None], math.inf))
    constant = theorems.layer_norm_bound(gamma, eps, math.inf)
    assert best <= constant * (1 + 1e-12)
    assert best >= constant * (1 - 1e-5)
    if width <= 57:
        assert constant.item() == pytest.approx(2 / math.sqrt(eps) * 2 * (width - 1) / width, rel=1e-12)


@pytest.mark.parametrize("width", [2, 3, 10, 57, 58, 64, 200, 512])
@pytest.mark.parametrize("eps", [1.0, 1e-5])
def test_the_steepest_token_attains_the_inf_norm(width, eps):
    gamma = torch.ones(width, dtype=F64)
    token = steepest_token(width, eps)
    assert token.shape == (width,)
    assert (token.abs().max() > 0) == (width > 57)
    constant = theorems.layer_norm_bound(gamma, eps, math.inf).item()
    assert steepest(layer_norm(gamma, eps), token[None], math.inf).item() == pytest.approx(constant, rel=1e-12)


def test_the_bound_by_row_sums():
    """Above the constant at every width, and not by a factor of two."""
    for width in (1, 2, 3, 8, 57, 64, 128, 512, 4096):
        gamma = torch.linspace(-3, 2, width)
        loose, exact = (
            theorems.layer_norm_row_sum_bound(gamma, 1e-5).item(),
            theorems.layer_norm_bound(gamma, 1e-5, math.inf).item(),
        )
        assert exact <= loose < 2 * exact or width == 1
    assert theorems.layer_norm_row_sum_bound(torch.ones(4), 1.0).item() == pytest.approx(1.5 + 1 / (3 * math.sqrt(3)))
    assert theorems.layer_norm_row_sum_bound(torch.ones(4), 0.0) == math.inf
    assert theorems.layer_norm_row_sum_bound(torch.tensor([1.0, math.nan]), 1.0) == math.inf


@pytest.mark.parametrize("width", [1, 3, 4, 5, 9, 40])
def test_rms_norm_attains_the_inf_norm(width):
    gamma = torch.ones(width, dtype=F64)
    gamma[0] = -2
    eps = 0.01
    shares = torch.linspace(0, 0.9999, 2000, dtype=F64)[:, None]
    angle = torch.tensor(math.atan(math.sqrt(width - 1)) / 2 if width > 1 else 0.0, dtype=F64)
    # sin^2 of the first entry against the rest, all equal and of the other sign: sqrt(D-1) sin cos - sin^2 is largest
    w = torch.full((width,), -angle.cos().item() / math.sqrt(max(width - 1, 1)), dtype=F64)
    w[0] = angle.sin()
    reached = steepest(rms_norm(gamma, eps), (width * eps * shares / (1 - shares)).sqrt() * w, math.inf)
    constant = theorems.rms_norm_bound(gamma, eps, math.inf)
    assert constant * (1 - 1e-5) <= reached <= constant * (1 + 1e-12)


def test_linear_ones_attain_the_inf_norm():
    gamma = torch.tensor([0.5, -3.0, 1.0], dtype=F64)
    for norm in (center_norm, act_norm):
        reached = steepest(norm(gamma, 0.0), torch.zeros(1, 3, dtype=F64), math.inf)
        assert reached.item() == pytest.approx(bound(norm, gamma, 0.0, math.inf).item(), rel=1e-12)


def test_without_the_projection_onto_mean_zero_the_inf_norm_would_be_false():
    """max|gamma| / sqrt(eps), right for the 2-norm, is exceeded in the inf-norm by constant tokens."""
    gamma = torch.ones(8, dtype=F64)
    assert steepest(layer_norm(gamma, 1.0), torch.zeros(1, 8, dtype=F64), math.inf) == pytest.approx(7 / 4)


@pytest.mark.parametrize("p", [2, math.inf, "mixed"])
def test_without_eps_there_is_no_constant(p):
    gamma = torch.ones(4)
    assert theorems.layer_norm_bound(gamma, 0.0, p) == math.inf
    assert theorems.rms_norm_bound(gamma, 0.0, p) == math.inf
    for size in (1e-3, 1e-6):
        x = size * torch.tensor([[1.0, -1.0, 1.0, -1.0]], dtype=F64)
        assert steepest(layer_norm(gamma.double(), 0.0), x, 2) > 0.9 / size
    with pytest.raises(ValueError, match="eps must not be negative"):
        theorems.layer_norm_bound(gamma, -1.0, p)


@NORMALISATIONS
@pytest.mark.parametrize("p", [2, math.inf, "mixed"])
def test_results_are_float64_differentiable_and_never_nan(norm, p):
    gamma = torch.tensor([1.0, -2.0, 0.5], requires_grad=True)
    constant = bound(norm, gamma, 1e-5, p)
    assert constant.shape == ()
    assert constant.dtype == F64
    (gradient,) = torch.autograd.grad(constant, gamma)
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0
    for broken in (math.nan, math.inf):
        assert bound(norm, torch.tensor([1.0, broken, 0.0]), 1e-5, p) == math.inf
    with pytest.raises(ValueError, match="p must be"):
        bound(norm, gamma, 1e-5, 3)


def test_center_norm_needs_two_features():
    with pytest.raises(ValueError, match="at least 2"):
        theorems.center_norm_bound(torch.ones(1), 2)


@settings(max_examples=30)
@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=6), st.floats(1e-8, 10), st.integers(0, 2**31))
def test_secants_obey(scales, eps, seed):
    """Two whole tokens, near or far apart, in both norms."""
    gamma = torch.tensor(scales, dtype=F64)
    generator = torch.Generator().manual_seed(seed)
    x, y = tokens(generator, 2, len(scales), eps)
    for norm in (layer_norm, rms_norm, center_norm, act_norm):
        moved = norm(gamma, eps)(x) - norm(gamma, eps)(y)
        rounding = 1e-12 * gamma.abs().max() * (1 + x.abs().max() + y.abs().max()) / min(1, math.sqrt(eps))
        for p in (2, math.inf):
            size = torch.linalg.vector_norm(moved, p)
            assert size <= bound(norm, gamma, eps, p) * torch.linalg.vector_norm(x - y, p) * (1 + 1e-9) + rounding
