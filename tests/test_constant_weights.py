"""What a layer makes of its parameters is computed once for a whole inverse."""

import pytest
import torch

from lipformer.modules.attention import (
    ContractiveL2Attention,
    ContractiveL2BlocksAttention,
    ContractiveL2DecoupledAttention,
)
from lipformer.modules.contexts import constant_weights
from lipformer.modules.feedforward import ContractiveFeedForward
from lipformer.modules.fixed_point import solve
from lipformer.modules.normalisations import NoNorm
from lipformer.modules.residual import InvertibleResidual

KINDS = {
    "contractive_l2": lambda: ContractiveL2Attention(8, 2, context=16),
    "decoupled": lambda: ContractiveL2DecoupledAttention(8, 2, context=16),
    "blocks": lambda: ContractiveL2BlocksAttention(8, 2, context=16),
    "feedforward": lambda: ContractiveFeedForward(8),
}


@pytest.fixture(params=KINDS)
def layer(request):
    torch.manual_seed(0)
    return KINDS[request.param]().double()


def counting(layer, calls):
    name = layer.weight_methods[0]
    method = getattr(type(layer), name)

    class Counted(type(layer)):
        pass

    setattr(Counted, name, lambda self: calls.append(1) or method(self))
    layer.__class__ = Counted


def test_an_inverse_computes_them_once_and_finds_the_same(layer):
    residual = InvertibleResidual(layer, NoNorm, 8)
    y = residual(torch.randn(2, 9, 8, dtype=torch.float64)).detach()
    before = solve(layer, y)  # evaluates the layer as it is
    calls = []
    counting(layer, calls)
    solution = residual.invert(y)
    assert len(calls) == 1
    assert solution.iterations == before.iterations > 1
    assert torch.equal(solution.x, before.x)


def test_the_methods_are_themselves_again(layer):
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    name = layer.weight_methods[0]
    with constant_weights(layer):
        assert name in vars(layer)
    assert name not in vars(layer)
    with pytest.raises(ValueError, match="residual"), constant_weights(layer):
        raise ValueError("in the middle of a residual")
    assert name not in vars(layer)
    old = layer(x).detach()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter))
    assert not torch.equal(layer(x), old)
    layer(x).sum().backward()
    assert any(parameter.grad is not None for parameter in layer.parameters())
