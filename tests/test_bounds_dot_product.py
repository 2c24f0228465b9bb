"""Dot-product attention on a ball and at a point: attacked, and beside forms in circulation that are false."""

import math

import pytest
import torch
from jacobians import NORMS, jacobian, norm_2, norm_inf, norm_mixed

from lipformer import theorems
from lipformer.functional.attention import masked_softmax
from lipformer.modules.attention import DotProductAttention, L2Attention, TiedL2Attention

F64 = torch.float64


def attend(x, score_map, value, out, causal):
    """Heads by the formula, (..., N, D) -> (..., N, D)."""
    heads = [masked_softmax(x @ a @ x.mT, causal) @ x @ v for a, v in zip(score_map, value, strict=True)]
    return torch.cat(heads, -1) @ out


def random_layer(generator):
    """1 to 3 heads, width 1 to 4, value heads narrower or wider, score maps over two decades."""
    heads, width, columns = (int(torch.randint(1, top, (), generator=generator)) for top in (4, 5, 4))
    score_map = torch.randn(heads, width, width, generator=generator, dtype=F64)
    score_map = score_map * 10 ** (2 * torch.rand(heads, 1, 1, generator=generator, dtype=F64) - 1.5)
    value = torch.randn(heads, width, columns, generator=generator, dtype=F64)
    return score_map, value, torch.randn(heads * columns, width, generator=generator, dtype=F64)


def random_tokens(generator, count, length, width):
    x = torch.randn(count, length, width, generator=generator, dtype=F64)
    x = x * 10 ** (2 * torch.rand(count, 1, 1, generator=generator, dtype=F64) - 1)
    return x + (torch.arange(count) % 2)[:, None, None] * torch.randn(count, 1, width, generator=generator, dtype=F64)


def scalar(a, width=1):
    """One head, A = a I, W^V = W^O = I."""
    eye = torch.eye(width, dtype=F64)
    return a * eye[None], eye[None], eye


def on_ball(layer, radius, length, p, causal):
    return theorems.dot_product_bound_on_ball(*layer, radius, length, p, causal)


# --- attacks ---------------------------------------------------------------------------------------------------


def hold(cases, inputs):
    generator = torch.Generator().manual_seed(0)
    for case in range(cases):
        layer, causal, length = random_layer(generator), case % 2 == 0, 1 + case % 6
        x = random_tokens(generator, inputs, length, layer[0].shape[-1])
        jac = jacobian(lambda t, w=layer, c=causal: attend(t, *w, c), x)
        reached = {2: norm_2(jac), math.inf: norm_inf(jac), "mixed": norm_mixed(jac)}
        local = theorems.dot_product_local_bound(x, *layer, causal)
        assert local.shape == (inputs,)
        assert (reached[2] <= local * (1 + 1e-9)).all()
        for index, radius in enumerate(x.norm(dim=-1).amax(-1)):
            for p, norms in reached.items():
                assert norms[index] <= on_ball(layer, radius, length, p, causal) * (1 + 1e-9)
            assert local[index] <= on_ball(layer, radius, length, 2, causal) * (1 + 1e-9)


def test_random_jacobians_obey():
    hold(cases=30, inputs=8)


@pytest.mark.slow
def test_thousands_of_random_jacobians_obey():
    hold(cases=200, inputs=20)


def climb(p, causal, steps, attempts, length=4, width=2):
    """Ascend log |J| - log bound over inputs of the unit ball, and over the score maps; return the best ratio."""
    generator = torch.Generator().manual_seed(4)
    score_map = torch.randn(attempts, width, width, generator=generator, dtype=F64).requires_grad_()
    x = torch.randn(attempts, length, width, generator=generator, dtype=F64).requires_grad_()
    eye = torch.eye(width, dtype=F64)
    optimizer = torch.optim.Adam([x, score_map], lr=0.05)
    best = 0.0
    for _ in range(steps):
        ball = x / x.norm(dim=-1, keepdim=True).clamp_min(1)

        def single(tokens, a):
            return masked_softmax(tokens @ a @ tokens.mT, causal) @ tokens

        jac = torch.func.vmap(torch.func.jacrev(single))(ball, score_map)
        bounds = torch.stack([on_ball((a[None], eye[None], eye), 1.0, length, p, causal) for a in score_map])
        ratios = NORMS[p](jac) / bounds
        assert ratios.max() <= 1 + 1e-9
        best = max(best, ratios.max().item())
        if p == 2:
            weights = zip(ball.detach(), score_map.detach(), strict=True)
            local = [theorems.dot_product_local_bound(t, a[None], eye[None], eye, causal) for t, a in weights]
            assert (NORMS[p](jac) <= torch.stack(local) * (1 + 1e-9)).all()
        optimizer.zero_grad()
        ratios.clamp_min(1e-300).log().sum().neg().backward()
        optimizer.step()
    return best


@pytest.mark.parametrize("p", [2, math.inf, "mixed"])
@pytest.mark.parametrize("causal", [True, False])
def test_ascent_does_not_exceed(p, causal):
    assert climb(p, causal, steps=10, attempts=6) > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("p", [2, math.inf, "mixed"])
@pytest.mark.parametrize("causal", [True, False])
def test_long_ascent_does_not_exceed(p, causal):
    for length, width in ((2, 1), (4, 2), (6, 3)):
        climb(p, causal, steps=150, attempts=10, length=length, width=width)


# --- what the pieces are for -----------------------------------------------------------------------------------


def test_formulas_with_numbers():
    """Two heads whose norms can be read off: a R^2 = 2 * 0.25 = 0.5 and 1; |W^V| = 3, 1; |W^O| = 5 as each block's."""
    score_map = torch.tensor([2.0, 4.0], dtype=F64)[:, None, None] * torch.eye(2, dtype=F64)
    value = torch.tensor([3.0, 1.0], dtype=F64)[:, None, None] * torch.eye(2, dtype=F64)
    layer, spreads = (score_map, value, 5 * torch.eye(4, 2, dtype=F64)), (0.5, 1.0)

    def expected(kappas):
        sizes = [v * (k * math.hypot(1, a) + a) for v, k, a in zip((3, 1), kappas, spreads, strict=True)]
        return min(5 * math.hypot(*sizes), 5 * sizes[0])  # the second head's block of W^O is zero

    assert on_ball(layer, 0.5, 3, "mixed", True).item() == pytest.approx(expected((1, 1)))
    kappas = [math.sqrt(3 / (1 + 2 * math.exp(-2 * a))) for a in spreads]
    assert on_ball(layer, 0.5, 3, 2, False).item() == pytest.approx(expected(kappas))
    kappas = [math.sqrt(1 + 1 / (1 + math.exp(-2 * a)) + 1 / (1 + 2 * math.exp(-2 * a))) for a in spreads]
    assert on_ball(layer, 0.5, 3, 2, True).item() == pytest.approx(expected(kappas))
    # inf, first output feature: columns (15, 0) and (0, 0); |A|_{2 to 1} <= sqrt(2) * 2, from either side
    inf = 15 + 0.25 * 2 * math.sqrt(2) * 2 * 15
    assert on_ball(layer, 0.5, 3, math.inf, True).item() == pytest.approx(inf)


def test_heads_are_combined_by_the_better_rule():
    out = torch.zeros(4, 4, dtype=F64)
    out[:2, :2], out[2:, 2:] = torch.eye(2), torch.eye(2)
    constants = torch.tensor([3.0, 4.0], dtype=F64)
    assert theorems.combine_heads(constants, out).item() == pytest.approx(5)  # quadrature: the blocks do not meet
    out = torch.zeros(4, 4, dtype=F64)
    out[2:, 2:] = torch.eye(2)
    assert theorems.combine_heads(constants, out).item() == pytest.approx(4)  # the sum: one block is zero


@pytest.mark.parametrize("causal", [True, False])
def test_nearly_attained_by_two_clusters(causal):
    """Mixed norm, width 2: tokens +-e1, which A sends to a e2 from either side, so that all scores vanish."""
    a = 30.0
    layer = (torch.tensor([[[0.0, a], [a, 0.0]]], dtype=F64), torch.eye(2, dtype=F64)[None], torch.eye(2, dtype=F64))
    x = torch.tensor([[-1.0, 0.0], [1.0, 0.0]], dtype=F64)
    reached = norm_mixed(jacobian(lambda t: attend(t, *layer, causal), x))
    bound = on_ball(layer, 1.0, 2, "mixed", causal)
    assert 0.99 * bound <= reached <= bound


def test_mixed_and_inf_are_free_of_length_and_the_2_norm_saturates():
    layer = scalar(0.3, 3)
    for causal in (True, False):
        for p in ("mixed", math.inf):
            assert on_ball(layer, 1.0, 2, p, causal) == on_ball(layer, 1.0, 10**6, p, causal)
        lengths = [on_ball(layer, 1.0, n, 2, causal).item() for n in (1, 2, 3, 10, 1000, 10**6)]
        assert lengths == sorted(lengths)
    a = 0.3
    limit = math.exp(a) * math.hypot(1, a) + a  # the mean-field regime
    assert on_ball(layer, 1.0, 10**9, 2, False).item() == pytest.approx(limit, rel=1e-6)
    a = 0.01
    hardy = 2 * math.exp(2 * a) * (1 + 2 * a) + a
    assert on_ball(scalar(a), 1.0, 10**6, 2, True).item() == pytest.approx(hardy)
    assert on_ball(scalar(a), 1.0, 3, 2, True) < hardy


def test_never_above_the_forms_in_circulation():
    """sqrt(3) v (a^2 R^4 (4n+1) + n)^(1/2), v (kappa (1 + a R^2) + a R^2), and three forms for causal attention."""
    for length in (1, 2, 5, 50, 500):
        for a in (0.01, 0.1, 0.5, 1.0, 3.0, 30.0):
            layer = scalar(a, 2)
            root = math.sqrt(3 * (a * a * (4 * length + 1) + length))
            kappa = min(math.sqrt(length), math.exp(a))
            assert on_ball(layer, 1.0, length, 2, False) <= (kappa * (1 + a) + a) * (1 + 1e-12)
            causal = min(
                math.sqrt(length) * (1 + a),
                math.exp(a) * math.sqrt(1 + math.log(length)) * (1 + a),
                2 * math.exp(2 * a) * (1 + 2 * a),
            )
            assert on_ball(layer, 1.0, length, 2, True) <= (causal + a) * (1 + 1e-12)
            for masked in (True, False):
                assert on_ball(layer, 1.0, length, 2, masked) < root


# --- forms that are false --------------------------------------------------------------------------------------


def test_a_bound_out_of_a_x_alone_is_false():
    """A = e1 e2', tokens (0, +-t): all A'x_i = 0, yet the derivative is t^2."""
    layer = (torch.tensor([[[0.0, 1.0], [0.0, 0.0]]], dtype=F64), *scalar(1, 2)[1:])
    for t in (3.0, 10.0):
        x = torch.tensor([[0.0, t], [0.0, -t]], dtype=F64)
        reached = norm_2(jacobian(lambda z: attend(z, *layer, False), x))
        gathered = (x @ layer[0][0]).norm(dim=-1).max()
        in_circulation = math.sqrt(gathered**2 * (2 * t) ** 2 * 3 + 2)
        assert in_circulation == pytest.approx(math.sqrt(2))
        assert reached.item() == pytest.approx(t**2, rel=0.02)
        local = theorems.dot_product_local_bound(x, *layer, False)
        assert reached <= local <= 2.5 * reached
        assert reached <= on_ball(layer, t, 2, 2, False)
    assert reached > 50 * in_circulation


def test_the_unmasked_kappa_is_false_under_a_causal_mask():
    """All tokens zero: P is the matrix of running means, of norm above 1, where e^(a R^2) would be 1."""
    length = 64
    layer = scalar(1e-6)
    x = torch.zeros(length, 1, dtype=F64)
    reached = norm_2(jacobian(lambda t: attend(t, *layer, True), x))
    unmasked, causal = (on_ball(layer, 1e-3, length, 2, masked) for masked in (False, True))
    assert reached > 1.3 * unmasked
    assert reached <= causal <= 2.001  # Hardy's constant; the bound by column sums is sqrt(4.7)


def test_without_a_radius_or_with_broken_weights_there_is_no_constant():
    for p in (2, math.inf, "mixed"):
        for causal in (True, False):
            assert on_ball(scalar(1.0), math.inf, 3, p, causal) == math.inf
            assert on_ball(scalar(math.nan), 1.0, 3, p, causal) == math.inf
            assert on_ball(scalar(1.0), 1e200, 3, p, causal) == math.inf
            assert on_ball(scalar(1.0), torch.tensor(2.0), 3, p, causal).isfinite()
    with pytest.raises(ValueError, match="p must be"):
        on_ball(scalar(1.0), 1.0, 3, 1, True)
    with pytest.raises(ValueError, match="length must be at least 1"):
        on_ball(scalar(1.0), 1.0, 0, 2, True)


def test_gradient_reaches_the_weights():
    generator = torch.Generator().manual_seed(0)
    layer = tuple(weight.requires_grad_() for weight in random_layer(generator))
    for p in (2, math.inf, "mixed"):
        gradients = torch.autograd.grad(on_ball(layer, 1.0, 3, p, True), layer)
        assert all(gradient.isfinite().all() and gradient.abs().max() > 0 for gradient in gradients)


# --- the layer -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
def test_layer_on_a_ball(causal):
    torch.manual_seed(0)
    layer = DotProductAttention(4, 2, context=5, causal=causal).double().eval()
    for size in (0.3, 1.0, 3.0):
        with torch.no_grad():
            for weight in layer.parameters():
                weight.copy_(torch.randn(4, 4))
        x = torch.randn(20, 5, 4, dtype=F64)
        x = size * x / x.norm(dim=-1, keepdim=True)
        jac = jacobian(layer, x)
        for p in NORMS:
            bound = layer.lipschitz_bound_on_ball(size, p)
            assert bound.shape == ()
            assert bound.dtype == F64
            assert NORMS[p](jac).max() <= bound
            assert layer.lipschitz_bound_on_ball(size, p, length=2) <= bound
            assert layer.lipschitz_bound(p) == math.inf
        score_map = layer.query.weight.unflatten(0, (2, 2)).mT @ layer.key.weight.unflatten(0, (2, 2)) / math.sqrt(2)
        value = layer.value.weight.unflatten(0, (2, 2)).mT
        local = theorems.dot_product_local_bound(x, score_map, value, layer.out.weight.mT, causal)
        assert (norm_2(jac) <= local).all()
        assert (local <= layer.lipschitz_bound_on_ball(size, 2)).all()


def test_layer_in_train_mode_counts_its_dropouts():
    torch.manual_seed(0)
    layer = DotProductAttention(2, 1, context=3, causal=False, dropout=0.5).double()
    eye = torch.eye(2, dtype=F64)
    with torch.no_grad():
        for linear in (layer.query, layer.key, layer.value, layer.out):
            linear.weight.copy_(eye)
    reached = 0.0
    for seed in range(60):
        x = torch.randn(3, 2, dtype=F64)
        x = x / x.norm(dim=-1, keepdim=True)
        torch.manual_seed(seed)
        jac = torch.autograd.functional.jacobian(lambda t: layer(t[None], fused=False)[0], x)
        reached = max(reached, norm_mixed(jac).item())
    train, plain = layer.lipschitz_bound_on_ball(1.0, "mixed"), layer.eval().lipschitz_bound_on_ball(1.0, "mixed")
    assert plain < reached <= train
    assert train.item() == pytest.approx(plain.item() * math.sqrt(2) * 4)


def test_caveats_say_which_layers_are_not_lipschitz():
    assert "not Lipschitz" in DotProductAttention.caveat
    assert "not Lipschitz" in L2Attention.caveat
    assert TiedL2Attention.caveat == ""


def test_local_bound_is_close():
    """Between the norm and twice the norm, at the median of random inputs."""
    generator = torch.Generator().manual_seed(5)
    score_map = 0.5 * torch.randn(1, 3, 3, generator=generator, dtype=F64)
    layer = (score_map, torch.randn(1, 3, 2, generator=generator, dtype=F64), torch.eye(2, dtype=F64))
    x = random_tokens(generator, 50, 5, 3)
    reached = norm_2(jacobian(lambda t: attend(t, *layer, True), x))
    ratio = theorems.dot_product_local_bound(x, *layer, True) / reached
    assert 1 < ratio.median() < 2
