"""The token-wise branches."""

import math

import pytest
import torch
from jacobians import NORMS, jacobian

from lipformer.functional import spectral
from lipformer.modules.feedforward import ContractiveFeedForward, FeedForward, NoFeedForward

F64 = torch.float64


@pytest.mark.parametrize(("kind", "keywords"), [(FeedForward, {}), (ContractiveFeedForward, {"scale": 0.9})])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_it_is_its_formula(kind, keywords, activation):
    torch.manual_seed(0)
    layer = kind(4, activation=activation, expansion=3, **keywords).double()
    with torch.no_grad():
        layer.expand.bias.copy_(torch.randn(12))
        layer.contract.bias.copy_(torch.randn(4))
    x = torch.randn(2, 5, 4, dtype=F64)
    one, two, factor = layer.expand.weight, layer.contract.weight, 1.0
    if kind is ContractiveFeedForward:
        one, two, factor = spectral.normalise(one), spectral.normalise(two), 0.9 / layer.slope
    hidden = getattr(torch.nn.functional, activation)(x @ one.mT + layer.expand.bias)
    torch.testing.assert_close(layer(x), factor * hidden @ two.mT + layer.contract.bias)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("size", [0.0, 1e-25, 1e-3, 1.0, 1e3, 1e8])
def test_it_contracts_whatever_its_weights(activation, size):
    torch.manual_seed(0)
    layer = ContractiveFeedForward(8, activation=activation, expansion=2)
    with torch.no_grad():
        for linear in (layer.expand, layer.contract):
            linear.weight.mul_(size)
    x = torch.randn(3, 4, 8, requires_grad=True)
    layer(x).square().sum().backward()
    assert layer.contraction_bound() <= layer.scale
    assert all(weight.grad.isfinite().all() for weight in (x, *layer.parameters()))


def test_little_is_lost_to_the_bound():
    """Orthogonal matrices and ReLU units that are all on: the constant is the scale, up to the norms' slack."""
    layer = ContractiveFeedForward(8, activation="relu", expansion=1).double()
    with torch.no_grad():
        for linear in (layer.expand, layer.contract):
            torch.nn.init.orthogonal_(linear.weight)
        layer.expand.bias.fill_(100)
    reached = NORMS[2](jacobian(layer, torch.randn(1, 2, 8, dtype=F64)))
    assert 0.97 * layer.scale < reached <= layer.contraction_bound() * (1 + 1e-9)


def test_it_contracts_after_steps_of_one():
    torch.manual_seed(0)
    layer = ContractiveFeedForward(8, activation="gelu")
    optimizer = torch.optim.Adam(layer.parameters(), lr=1.0)
    for _ in range(20):
        optimizer.zero_grad()
        (layer(torch.randn(4, 3, 8)) - 1).square().sum().backward()
        optimizer.step()
        assert layer.contraction_bound() <= layer.scale


@pytest.mark.parametrize("kind", [FeedForward, ContractiveFeedForward])
def test_weights_that_are_not_finite_have_no_certificate(kind):
    layer = kind(4)
    layer.expand.weight.data[0, 0] = math.nan
    assert all(layer.lipschitz_bound(p) == math.inf for p in NORMS)
    layer.contract.weight.data.zero_()  # a constant map, or nan: never a bound that is not a number
    assert not any(layer.lipschitz_bound(p).isnan() for p in NORMS)


def test_dropout_counts():
    plain, contractive = FeedForward(4, dropout=0.5), ContractiveFeedForward(4, dropout=0.5)
    torch.testing.assert_close(plain.train().lipschitz_bound(), 2 * plain.eval().lipschitz_bound())
    torch.testing.assert_close(contractive.train().lipschitz_bound(), 2 * contractive.eval().lipschitz_bound())
    assert contractive.train().contraction_bound() <= contractive.scale


def test_none_is_zero():
    layer, x = NoFeedForward(4, dropout=0.3), torch.randn(2, 3, 4)
    assert torch.equal(layer(x), torch.zeros_like(x))
    assert layer.contraction_bound() == layer.lipschitz_bound(math.inf) == 0


def test_refusals():
    with pytest.raises(ValueError, match="activation=tanh: it must be one of relu, gelu"):
        ContractiveFeedForward(4, activation="tanh")
    for scale in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"scale=.*: it must be above 0 and below 1"):
            ContractiveFeedForward(4, scale=scale)


@pytest.mark.parametrize("kind", [FeedForward, ContractiveFeedForward])
def test_half_precision_stays_near(kind):
    torch.manual_seed(0)
    layer, x = kind(16), torch.randn(2, 5, 16)
    reference = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (layer(x) - reference).norm() < 0.02 * reference.norm()
    assert (layer.bfloat16()(x.bfloat16()) - reference).norm() < 0.04 * reference.norm()
