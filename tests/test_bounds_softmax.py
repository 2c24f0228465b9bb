"""The norm of the softmax Jacobian against eigenvalues, exact arithmetic and differences; block bounds attacked."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jacobians import jacobian, norm_2
from test_bounds_dot_product import attend, random_layer, random_tokens

from lipformer import theorems
from lipformer.functional import spectral

F64 = torch.float64


def rows(columns, count=100):
    """Rows of every kind: flat and peaked, with ties, almost tied, almost one-hot, with masked entries."""
    generator = torch.Generator().manual_seed(columns)

    def draw():
        return torch.randn(count, columns, generator=generator, dtype=F64)

    logits = [scale * draw() for scale in (0.01, 1.0, 10.0, 100.0)]
    logits += [scale * draw().round() for scale in (1.0, 30.0)]
    almost = torch.zeros(count, columns, dtype=F64)
    almost[:, :2] = 5 + 1e-10 * draw()[:, :2]
    masked = 3 * draw()
    masked[:, 1 + columns // 2 :] = -math.inf
    one_hot = torch.full((1, columns), -math.inf, dtype=F64)
    one_hot[:, -1] = 0
    return torch.cat([*logits, almost, masked, one_hot, torch.zeros(1, columns, dtype=F64)]).softmax(-1)


def matrices(p):
    return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)


@pytest.mark.parametrize("columns", [1, 2, 3, 6, 40])
def test_norm_is_the_largest_eigenvalue(columns):
    p = rows(columns)
    norm = theorems.softmax_jacobian_norm(p)
    torch.testing.assert_close(norm, torch.linalg.eigvalsh(matrices(p))[:, -1], rtol=0, atol=2e-15)
    sorted_rows = p.sort(descending=True).values
    assert (norm <= sorted_rows[:, 0]).all()
    if columns > 1:
        assert (norm >= sorted_rows[:, 1]).all()
        assert norm.max() > 0.4


@given(st.lists(st.floats(0, 200), min_size=2, max_size=8))
@settings(max_examples=60)
def test_norm_has_no_rounding_to_speak_of(logits):
    """The sign of the secular sum, in rational arithmetic, changes within a few roundings: also far below 1e-16."""
    p = (-torch.tensor(logits, dtype=F64)).softmax(-1)
    norm = Fraction(theorems.softmax_jacobian_norm(p).item())
    exact = sorted((Fraction(value) for value in p.tolist()), reverse=True)
    if exact[0] == exact[1] or exact[1] < Fraction(1, 10**300):
        assert exact[1] <= norm <= exact[0]
        return

    def secular(value):
        return sum(weight / (weight - value) for weight in exact)

    room = 1 + Fraction(1, 10**15)
    assert norm / room <= exact[1] or secular(norm / room) <= 0
    assert norm * room >= exact[0] or secular(norm * room) >= 0


@pytest.mark.parametrize("columns", [2, 3, 7])
def test_gradient(columns):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(5, columns, generator=generator, dtype=F64)
    assert torch.autograd.gradcheck(lambda z: theorems.softmax_jacobian_norm(z.softmax(-1)), logits.requires_grad_())
    # Off the simplex too, where the function is that of diag(p) - p p' / sum p.
    p = torch.rand(5, columns, generator=generator, dtype=F64).requires_grad_()
    assert torch.autograd.gradcheck(theorems.softmax_jacobian_norm, p)
    scaled = matrices(p) + p.unsqueeze(-1) * p.unsqueeze(-2) * (1 - 1 / p.sum(-1))[:, None, None]
    torch.testing.assert_close(theorems.softmax_jacobian_norm(p), torch.linalg.eigvalsh(scaled)[:, -1])


def test_gradient_is_finite_where_rows_tie_or_are_one_hot_or_masked():
    for columns in (1, 2, 3, 40):
        p = rows(columns).requires_grad_()
        (gradient,) = torch.autograd.grad(theorems.softmax_jacobian_norm(p).sum(), p)
        assert gradient.isfinite().all()
        assert (gradient >= 0).all()
    p = torch.tensor([[0.4, 0.4, 0.2, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]], dtype=F64, requires_grad=True)
    (gradient,) = torch.autograd.grad(theorems.softmax_jacobian_norm(p).sum(), p)
    torch.testing.assert_close(gradient[0], torch.tensor([0.5, 0.5, 0.0, 0.0], dtype=F64))
    assert (gradient[1:] == 0).all()


def test_masked_entries_change_nothing():
    p = rows(6)
    wide = torch.cat([p, torch.zeros(len(p), 3, dtype=F64)], -1)
    torch.testing.assert_close(
        theorems.softmax_jacobian_norm(wide), theorems.softmax_jacobian_norm(p), rtol=1e-15, atol=0
    )
    torch.testing.assert_close(theorems.softmax_jacobian_g(wide), theorems.softmax_jacobian_g(p), rtol=1e-15, atol=0)


def test_a_second_derivative_raises():
    p = torch.tensor([0.5, 0.3, 0.2], dtype=F64, requires_grad=True)
    (gradient,) = torch.autograd.grad(theorems.softmax_jacobian_norm(p).square(), p, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_precisions():
    p = rows(6)
    single = theorems.softmax_jacobian_norm(p.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(
        single.double(), theorems.softmax_jacobian_norm(p.float().double()), rtol=1e-6, atol=1e-30
    )
    assert theorems.softmax_jacobian_norm(p.half()).dtype == torch.float32


@pytest.mark.parametrize("columns", [1, 2, 3, 6, 40])
def test_g_bounds_each_eigenvalue(columns):
    p = rows(columns)
    eigenvalues = torch.linalg.eigvalsh(matrices(p)).flip(-1)
    for k in range(1, columns + 1):
        assert (eigenvalues[:, k - 1] <= theorems.softmax_jacobian_g(p, k) + 1e-15).all()
    norm, g = theorems.softmax_jacobian_norm(p), theorems.softmax_jacobian_g(p)
    assert (norm <= g * (1 + 1e-14) + 1e-15).all()
    assert (g <= theorems.SOFTMAX_BOUND * (1 + 1e-15)).all()
    assert (g <= 1.1716 * norm + 1e-15).all()


def test_g_is_exact_where_all_but_the_largest_are_equal():
    for columns in (2, 5, 100):
        for largest in (1 / columns, 0.3, 0.9, 1 - 1e-6):
            if largest * columns >= 1:
                p = torch.full((columns,), (1 - largest) / (columns - 1), dtype=F64)
                p[0] = largest
                torch.testing.assert_close(theorems.softmax_jacobian_g(p), theorems.softmax_jacobian_norm(p))


def test_g_by_hand_and_its_errors():
    p = torch.tensor([0.2, 0.5, 0.3], dtype=F64)
    assert theorems.softmax_jacobian_g(p, 1).item() == pytest.approx(0.5 * 0.8)
    assert theorems.softmax_jacobian_g(p, 2).item() == pytest.approx(0.3 * 0.9)
    assert theorems.softmax_jacobian_g(p, 3).item() == pytest.approx(0.2 * 0.8)
    for k in (0, 4):
        with pytest.raises(ValueError, match="k must be between 1 and the 3 entries"):
            theorems.softmax_jacobian_g(p, k)


# --- blocks ----------------------------------------------------------------------------------------------------


def test_block_bounds_hold_and_are_ordered():
    generator = torch.Generator().manual_seed(3)
    for case in range(24):
        layer, causal = random_layer(generator), case % 2 == 0
        x = random_tokens(generator, 16, 1 + case % 5, layer[0].shape[-1])
        reached = norm_2(jacobian(lambda t, w=layer, c=causal: attend(t, *w, c), x))
        sharp = theorems.softmax_block_bound_centered(x, *layer, causal)
        assert sharp.shape == (16,)
        assert (reached <= sharp * (1 + 1e-9)).all()
        assert (sharp <= theorems.softmax_block_bound(x, *layer, causal) * (1 + 1e-9)).all()


def test_centring_is_not_free_to_forget_a_side():
    """The keys' side may lose the mean, the queries' may not: |A X_c'| twice is exceeded by tokens far from zero."""
    score_map, value, out = torch.eye(1, dtype=F64)[None], torch.eye(1, dtype=F64)[None], torch.eye(1, dtype=F64)
    x = torch.tensor([[100.0], [100.01]], dtype=F64)
    reached = norm_2(jacobian(lambda t: attend(t, score_map, value, out, False), x))
    centered = x - x.mean()
    weights = (x @ x.mT).softmax(-1)
    norm = theorems.softmax_jacobian_norm(weights).max()
    assert reached > spectral.exact(weights) + 2 * norm * spectral.exact(centered) ** 2
    assert reached <= theorems.softmax_block_bound_centered(x, score_map, value, out, False)
    # Far from zero the plain form pays for the offset twice over.
    plain = theorems.softmax_block_bound(x, score_map, value, out, False)
    assert plain > 100 * theorems.softmax_block_bound_centered(x, score_map, value, out, False)
