"""How far a row can look under a penalty on distance, and the constant of one head."""

import math

import pytest
import torch
from jacobians import block_row_sum, jacobian
from scipy.special import lambertw

from lipformer import theorems
from lipformer.functional.attention import l2_scores, masked_softmax, penalise_distance

F64 = torch.float64
MASSES = torch.cat([torch.zeros(1, dtype=F64), 10.0 ** torch.linspace(-300, 12, 313, dtype=F64)])


def test_mean_distance_is_lamberts_function():
    c = theorems.mean_distance(MASSES)
    reference = torch.tensor([lambertw(mass / math.e).real for mass in MASSES.tolist()], dtype=F64)
    torch.testing.assert_close(c, reference, rtol=1e-14, atol=0)
    assert c[0] == 0
    assert c.dtype == F64
    for length in (2, 3, 288, 10**6):
        expected = theorems.phi_inverse(length)
        assert theorems.mean_distance(torch.tensor(length - 1.0)).item() == pytest.approx(expected, rel=1e-14)


def test_mean_distance_solves_its_equation():
    mass = 10.0 ** torch.linspace(-12, 12, 97, dtype=F64)
    c = theorems.mean_distance(mass)
    torch.testing.assert_close(c * (c + 1).exp(), mass, rtol=1e-13, atol=0)
    assert (c[1:] > c[:-1]).all()


def test_mean_distance_has_the_right_derivatives():
    """First to third, against finite differences of the one before; at no mass it is 1/e."""
    mass = torch.tensor([1e-3, 0.3, 1.0, 5.0, 300.0], dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(theorems.mean_distance, mass, eps=1e-7, rtol=1e-5)

    def slope(mass):
        return torch.autograd.grad(theorems.mean_distance(mass).sum(), mass, create_graph=True)[0]

    def curvature(mass):
        return torch.autograd.grad(slope(mass).sum(), mass, create_graph=True)[0]

    for derivative in (slope, curvature):
        step = 1e-6 * mass.detach()
        up, down = (derivative((mass + sign * step).detach().requires_grad_()).detach() for sign in (1, -1))
        exact = torch.autograd.grad(derivative(mass).sum(), mass)[0]
        torch.testing.assert_close((up - down) / (2 * step), exact, rtol=1e-5, atol=1e-12)
    nothing = torch.zeros(1, dtype=F64, requires_grad=True)
    assert torch.autograd.grad(theorems.mean_distance(nothing).sum(), nothing)[0].item() == pytest.approx(1 / math.e)
    tiny = torch.tensor([1e-300], dtype=F64, requires_grad=True)
    assert torch.autograd.grad(theorems.mean_distance(tiny).sum(), tiny)[0].item() == pytest.approx(1 / math.e)


def test_mean_distance_is_the_largest_of_a_row_with_weights():
    """sum_j P_j t_j <= c for P_j ~ w_j exp(-t_j) and t_0 = 0, w_0 = 1; equal where every other t is c + 1."""
    generator = torch.Generator().manual_seed(0)
    for count in (1, 2, 30):
        for size in (1e-6, 1e-2, 1.0, 1e3):
            weights = size * torch.rand(count, generator=generator, dtype=F64)
            c = theorems.mean_distance(weights.sum())
            t = torch.rand(500, count, generator=generator, dtype=F64)
            t = t * 10 ** (4 * torch.rand(500, 1, generator=generator, dtype=F64) - 2)
            t[0] = c + 1
            share = weights * (-t).exp()
            mean = (share * t).sum(-1) / (1 + share.sum(-1))
            assert (mean <= c * (1 + 1e-12)).all()
            assert mean[0].item() == pytest.approx(c.item(), rel=1e-12)
            # The own token then carries 1 / (1 + c).
            assert (1 / (1 + share[0].sum())).item() == pytest.approx(1 / (1 + c.item()), rel=1e-12)


SLOPES = torch.tensor([1e-14, 1e-9, 1e-5, 0.01, 0.3, 1.0, 5.0, 100.0, 1e4], dtype=F64)


@pytest.mark.parametrize("length", [1, 2, 3, 17, 2000])
def test_local_mass_is_its_sum(length):
    steps = torch.arange(1, length, dtype=F64)
    direct = (-SLOPES[:, None] * steps).exp().sum(-1)
    mass = theorems.local_mass(SLOPES, length)
    # A slope below 1e-12 counts as none: above the sum by up to N 1e-14 of it here.
    torch.testing.assert_close(mass, direct, rtol=1e-12 + 1e-14 * length, atol=1e-300)
    assert (mass >= direct * (1 - 1e-12)).all()
    assert (mass <= (length - 1) * (1 + 1e-12)).all()


def test_local_mass_grows_with_the_length_up_to_its_limit():
    slopes = SLOPES[3:6]
    masses = torch.stack([theorems.local_mass(slopes, length) for length in (1, 2, 3, 10, 100, 10**4, 10**8)])
    assert (masses[1:] >= masses[:-1]).all()
    torch.testing.assert_close(masses[-1], 1 / torch.expm1(slopes), rtol=1e-12, atol=0)
    assert (masses <= 1 / torch.expm1(slopes) * (1 + 1e-12)).all()
    assert theorems.local_mass(torch.tensor([0.0]), 9).item() == 8


@pytest.mark.parametrize("length", [1, 2, 50])
def test_local_mass_is_differentiable(length):
    slopes = torch.tensor([0.01, 0.3, 2.0], dtype=F64, requires_grad=True)
    if length > 1:
        assert torch.autograd.gradcheck(lambda m: theorems.local_mass(m, length), slopes)
    ends = torch.tensor([0.0, 1e-14, 1e-12, 1e4], dtype=F64, requires_grad=True)
    gradient = torch.autograd.grad(theorems.head_constant(length, ends).sum(), ends)[0]
    assert gradient.isfinite().all()
    assert (gradient <= 0).all()


def test_a_penalty_frees_the_constant_of_the_length():
    for slope in (0.01, 0.1, 1.0):
        m = torch.tensor([slope], dtype=F64)
        window = theorems.head_constant(math.ceil(8 / slope) + 1, m).item()
        far = theorems.head_constant(10**9, m).item()
        assert window <= far <= window * 1.001
        assert far < theorems.head_constant(10**9).item()
    assert theorems.head_constant(50, torch.tensor([1e-13])).item() == pytest.approx(theorems.head_constant(50).item())


def head(x, slope):
    """One head of width one: P x with unit weights."""
    scores = penalise_distance(l2_scores(x[..., None, :, :], x[..., None, :, :], 1.0), slope)
    return (masked_softmax(scores, causal=True) @ x[..., None, :, :]).squeeze(-3)


@pytest.mark.parametrize("slope", [0.02, 0.1, 0.5, 2.0])
def test_the_constant_with_a_penalty_is_nearly_attained(slope):
    """Alternating at a and -a, a^2 = c + 1, before a last token at 0: as tight as without a penalty."""
    tokens = 2 * math.ceil(4 / slope) + 1
    m = torch.tensor([slope], dtype=F64)
    bound = theorems.head_constant(tokens, m).item()
    arm = math.sqrt((bound - 1) / 4 + 1)
    x = arm * (1 - 2 * (torch.arange(tokens, dtype=F64) % 2))[:, None]
    x[-1] = 0
    leaf = x.requires_grad_()
    (row,) = torch.autograd.grad(head(leaf, m)[-1, 0], leaf)
    reached = row.abs().sum().item()
    assert 0.6 * bound <= reached <= bound
    # The sum of the weights is what matters: with a constant for the window alone it would be exceeded.
    if slope <= 0.1:
        assert reached > theorems.head_constant(3, m).item()


def test_ascent_over_tokens_and_slope_does_not_exceed_the_constant():
    generator = torch.Generator().manual_seed(1)
    x = (2 * torch.randn(6, 12, 2, generator=generator, dtype=F64)).requires_grad_()
    log_slope = torch.tensor([-1.0], dtype=F64, requires_grad=True)
    optimizer = torch.optim.Adam([x, log_slope], lr=0.1)
    best = 0.0
    for _ in range(30):
        slope = log_slope.exp()
        ratios = block_row_sum(jacobian(lambda t, m=slope: head(t, m), x)) / theorems.head_constant(12, slope)
        assert ratios.max() <= 1 + 1e-9
        best = max(best, ratios.max().item())
        optimizer.zero_grad()
        ratios.log().sum().neg().backward()
        optimizer.step()
    assert best > 0.6


def test_heads_have_constants_of_their_own():
    """Under the root (mixed), in the maximum (inf, blocks); the numbers by hand."""
    slope = torch.tensor([0.05, 3.0], dtype=F64)
    query = torch.eye(4, dtype=F64).unflatten(1, (2, 2)).transpose(0, 1)  # the columns of two heads
    maps = torch.stack([torch.eye(2, dtype=F64), 5 * torch.eye(2, dtype=F64)])
    out, length = 7 * torch.eye(4, dtype=F64), 40
    far, near = theorems.head_constant(length, slope).tolist()
    assert far > 2 * near
    mixed = theorems.tied_l2_bound_mixed(query, maps, out, length, slope=slope).item()
    assert mixed == pytest.approx(7 * math.hypot(far, 5 * near))
    assert theorems.tied_l2_bound_2(query, maps, out, length, slope=slope).item() == pytest.approx(
        math.sqrt(length) * mixed
    )
    root = math.sqrt(2)
    inf = 7 * max((far - 1) * root + 1, 5 * ((near - 1) * root + 1))
    assert theorems.tied_l2_bound_inf(query, maps, out, length, slope).item() == pytest.approx(inf)
    blocks = theorems.tied_l2_bound_blocks(query, maps, query.flip(0), length, slope=slope).item()
    assert blocks == pytest.approx(max(far, 5 * near))


def test_blocks_that_are_not_orthogonal_add_up():
    """Two heads that write the same direction: a norm of head blocks sees their sum."""
    query = torch.eye(2, dtype=F64)[:, :, None]
    written = torch.tensor([[[1.0], [0.0]], [[1.0], [0.0]]], dtype=F64)
    maps = torch.tensor([[[3.0]], [[4.0]]], dtype=F64)
    assert theorems.tied_l2_bound_blocks(query, maps, written, 1).item() == pytest.approx(7)
    assert theorems.block_norm(torch.tensor([[[[3.0]], [[0.0]]], [[[4.0]], [[5.0]]]], dtype=F64)).item() == 7
