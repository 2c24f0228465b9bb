"""Contractive L2 attention: below its constant in every precision, whatever the weights, and still trainable."""

import math

import pytest
import torch
from jacobians import NORMS, jacobian

from lipformer import theorems
from lipformer.functional import spectral
from lipformer.functional.heads import split_inputs, split_outputs
from lipformer.modules.attention import ContractiveL2Attention, TiedL2Attention

P = ["mixed", 2, math.inf]


@pytest.mark.parametrize("p", P)
def test_it_is_tied_l2_over_its_bound(p):
    torch.manual_seed(0)
    layer = ContractiveL2Attention(8, 2, context=6, p=p, scale=0.9).double()
    plain = TiedL2Attention(8, 2, context=6).double()
    plain.load_state_dict(layer.state_dict())
    query, value = (split_outputs(linear.weight, 2) for linear in (layer.query, layer.value))
    out, maps = layer.out.weight.mT, query.mT @ value / layer.s
    bound = {
        "mixed": lambda: theorems.tied_l2_bound_mixed(query, maps, out, 6, spectral.upper),
        2: lambda: theorems.kim_bound_2(query, value, out, 6, norm=spectral.upper),
        math.inf: lambda: theorems.kim_bound_inf(query, value, out, 6),
    }[p]()
    x = torch.randn(3, 6, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(x), 0.9 * plain(x) / bound)
    assert layer.lipschitz_bound(p) <= 0.9
    # The divisor is close to the bound it is named after: the upper norms cost little.
    exact = {
        "mixed": theorems.tied_l2_bound_mixed(query, maps, out, 6),
        2: theorems.kim_bound_2(query, value, out, 6),
        math.inf: bound,
    }[p]
    assert exact <= bound <= 1.1 * exact


@pytest.mark.parametrize("p", P)
@pytest.mark.parametrize("spread", [1e-3, 1.0, 30.0])
def test_float32_weights_at_width_512(p, spread):
    """The weights that the float32 forward pass uses, certified in float64."""
    torch.manual_seed(0)
    layer = ContractiveL2Attention(512, 8, context=288, p=p)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.mul_(spread)
        assert layer.lipschitz_bound(p) <= layer.scale
        # What the fused form multiplies by, N_h = M_h W^O_h, as float32 has it: still within the constant.
        maps = layer.value_maps()
        folded = (maps @ split_inputs(layer.out.weight, 8)).double()
        unfolded = maps.double() @ split_inputs(layer.out.weight, 8).double()
        assert (folded - unfolded).norm() < 1e-5 * unfolded.norm()


@pytest.mark.parametrize("p", P)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("width", "columns"), [(1, 1), (1, 2), (2, 1), (64, 2)])
def test_weights_that_attain_every_inequality(p, dtype, width, columns):
    """One head, all entries of a matrix equal: the bounds of products are exact, and only rounding is left."""
    torch.manual_seed(0)
    layer = ContractiveL2Attention(width, 1, context=5, p=p, scale=0.999, columns=columns).to(dtype)
    with torch.no_grad():
        for _ in range(100):
            for weight in layer.parameters():
                weight.fill_(10 ** (4 * torch.rand(()).item() - 2))
            assert 0.9 * layer.scale / columns < layer.lipschitz_bound(p) <= layer.scale


@pytest.mark.parametrize("p", P)
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["query", "value", "out"])
def test_weights_that_are_not_finite_have_no_certificate(p, value, name):
    for layer in (TiedL2Attention(8, 2, context=6), ContractiveL2Attention(8, 2, context=6, p=p)):
        getattr(layer, name).weight.data[1, 2] = value
        assert all(layer.lipschitz_bound(norm) == math.inf for norm in P)


@pytest.mark.parametrize("p", P)
@pytest.mark.parametrize("causal", [True, False])
def test_pairs_of_inputs_contract_in_float32(p, causal):
    """|f(x) - f(y)| <= scale |x - y|, near and far."""
    torch.manual_seed(0)
    norms = {
        2: lambda t: t.flatten(1).norm(dim=1),
        math.inf: lambda t: t.flatten(1).abs().amax(1),
        "mixed": lambda t: t.norm(dim=-1).amax(1),
    }
    layer = ContractiveL2Attention(64, 4, context=16, p=p, causal=causal)
    for size in (1e-3, 1e-1, 1.0, 10.0):
        x = 10 ** (4 * torch.rand(200, 1, 1) - 2) * torch.randn(200, 16, 64)
        y = x + size * torch.randn(200, 16, 64)
        moved, difference = layer(x) - layer(y), x - y
        assert (norms[p](moved) <= layer.scale * norms[p](difference)).all()


@pytest.mark.parametrize("p", P)
def test_gradient_reaches_all_weights(p):
    torch.manual_seed(0)
    layer = ContractiveL2Attention(16, 2, context=6, p=p)
    layer(torch.randn(2, 6, 16)).square().sum().sqrt().backward()
    for weight in layer.parameters():
        assert weight.grad.isfinite().all()
        assert weight.grad.norm() > 0


@pytest.mark.parametrize("p", P)
def test_gradient_passes_through_the_divisor(p):
    """f does not change with the scale of W^V and W^O, so its gradient is orthogonal to them."""
    torch.manual_seed(0)
    layer = ContractiveL2Attention(8, 2, context=6, p=p).double()
    layer(torch.randn(2, 6, 8, dtype=torch.float64)).sin().sum().backward()
    for linear in (layer.value, layer.out):
        inner = (linear.weight * linear.weight.grad).sum().abs()
        assert inner < 1e-9 * linear.weight.norm() * linear.weight.grad.norm()


@pytest.mark.parametrize("p", P)
@pytest.mark.parametrize("zero", [("query",), ("value",), ("out",), ("query", "value", "out")], ids="+".join)
@pytest.mark.parametrize("fused", [True, False])
def test_zero_weights(p, zero, fused):
    """No NaN forward or backward; a single zero matrix still learns, as in a layer without the division."""
    torch.manual_seed(0)
    layer = ContractiveL2Attention(8, 2, context=6, p=p)
    with torch.no_grad():
        for name in zero:
            getattr(layer, name).weight.zero_()
    x = torch.randn(2, 6, 8, requires_grad=True)
    y = layer(x, fused=fused)
    (y - 1).square().sum().backward()
    assert (y == 0).all()
    assert x.grad.isfinite().all()
    assert all(weight.grad.isfinite().all() for weight in layer.parameters())
    if zero in (("value",), ("out",)):
        assert getattr(layer, zero[0]).weight.grad.norm() > 0
    assert layer.lipschitz_bound(p) == 0


@pytest.mark.parametrize("p", P)
@pytest.mark.parametrize("size", [1e-12, 1e-4, 1e4, 1e7])
def test_extreme_weights(p, size):
    torch.manual_seed(0)
    layer = ContractiveL2Attention(8, 2, context=6, p=p)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.mul_(size)
    y = layer(torch.randn(2, 6, 8))
    y.sum().backward()
    assert y.isfinite().all()
    assert all(weight.grad.isfinite().all() for weight in layer.parameters())
    assert layer.lipschitz_bound(p) <= layer.scale


@pytest.mark.parametrize("p", P)
def test_length_does_not_change_the_layer(p):
    """The divisor is for N = context: a prefix has the outputs of the whole; its certificate is smaller."""
    torch.manual_seed(0)
    layer = ContractiveL2Attention(8, 2, context=6, p=p).double()
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[:, :3], layer(x[:, :3]))
    assert layer.lipschitz_bound(p, length=3) < layer.lipschitz_bound(p)
    assert layer.longest_input == 6


def test_longer_than_context_is_refused():
    layer = ContractiveL2Attention(8, 2, context=6)
    with pytest.raises(ValueError, match="sequence of 7 tokens is longer than the context of 6"):
        layer(torch.randn(1, 7, 8))
    with pytest.raises(ValueError, match="sequence of 7 tokens is longer than the context of 6"):
        layer.lipschitz_bound(2, length=7)


@pytest.mark.parametrize("scale", [0.0, 1.0, -0.5, 1.5])
def test_scale_must_contract(scale):
    with pytest.raises(ValueError, match=r"scale=.*: it must be above 0 and below 1"):
        ContractiveL2Attention(8, 2, context=6, scale=scale)


@pytest.mark.parametrize("p", P)
def test_autocast_does_not_reach_the_divisor(p):
    torch.manual_seed(0)
    layer = ContractiveL2Attention(32, 2, context=6, p=p)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        maps = layer.value_maps()
        bound = layer.lipschitz_bound(p)
    assert maps.dtype == torch.float32
    torch.testing.assert_close(maps, layer.value_maps(), rtol=0, atol=0)
    assert bound <= layer.scale


@pytest.mark.parametrize("p", P)
def test_residual_can_be_inverted(p):
    """x = y - f(x) converges at the rate of the constant, in the norm p, from far away."""
    torch.manual_seed(0)
    layer = ContractiveL2Attention(8, 2, context=6, p=p, scale=0.5).double()
    x = 3 * torch.randn(1, 6, 8, dtype=torch.float64)
    y = x + layer(x)
    guess = torch.zeros_like(x)
    for _ in range(60):
        guess = y - layer(guess)
    torch.testing.assert_close(guess, x, rtol=0, atol=1e-12)


def test_without_the_division_it_would_not_contract():
    """The attack has teeth: the same weights undivided have a Jacobian above one."""
    torch.manual_seed(0)
    layer = TiedL2Attention(4, 2, context=5).double()
    for weight in layer.parameters():
        weight.data.mul_(3)
    x = torch.randn(8, 5, 4, dtype=torch.float64)
    assert all(NORMS[p](jacobian(layer, x)).max() > 1 for p in P)
