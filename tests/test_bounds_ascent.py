"""Secant slopes, the ascent over inputs, and inputs at which attention is known to be steep."""

import math

import pytest
import torch
from jacobians import NORMS, block_row_sum
from small_layers import layer_of, tokens
from torch import nn

from lipformer import theorems
from lipformer.bounds.empirical import (
    Head,
    ascend,
    dominant_token,
    local_lipschitz,
    pairwise_ratios,
    two_clusters,
)
from lipformer.modules.attention import (
    ContractiveL2Attention,
    DotProductAttention,
    L2Attention,
    TiedL2Attention,
)

KINDS = [DotProductAttention, L2Attention, TiedL2Attention, ContractiveL2Attention]
ALL_NORMS = [2, math.inf, "mixed"]
CEILING = {2: NORMS[2], math.inf: NORMS[math.inf], "mixed": block_row_sum}


@pytest.mark.parametrize("p", ALL_NORMS)
def test_ratios_are_below_the_bound_and_approach_the_local_constant(p):
    layer, x = layer_of(TiedL2Attention), tokens(30, 5, 6, scale=2)
    y = tokens(30, 5, 6, scale=2, seed=1)
    y[0] = x[0]
    ratios = pairwise_ratios(layer, x, y, p)
    assert ratios[0] == 0
    assert (ratios[1:] > 0).all()
    assert (ratios <= layer.lipschitz_bound(p)).all()
    found = local_lipschitz(layer, x, p)
    near = pairwise_ratios(layer, x, x + 1e-6 * found.direction, p)
    torch.testing.assert_close(near, found.value, rtol=1e-4, atol=0)


def scalar_layer(length):
    layer = layer_of(TiedL2Attention, width=1, heads=1, context=length)
    for weight in layer.parameters():
        nn.init.ones_(weight)
    return layer


@pytest.mark.parametrize("length", [3, 11, 101])
def test_two_clusters_are_as_steep_as_computed(length):
    layer, c = scalar_layer(length), theorems.phi_inverse(length)
    for causal in (True, False):
        layer.causal = causal
        found = local_lipschitz(layer, two_clusters(layer, length), math.inf)
        assert found.value.item() >= 4 * c - 1 + 2 / (1 + c) - 1e-9
        assert found.value.item() <= layer.lipschitz_bound(math.inf, length).item()


def test_two_clusters_for_any_weights():
    layer = layer_of(TiedL2Attention, context=33)
    random = tokens(20, 33, 6, scale=2)
    for head in range(2):
        steep = local_lipschitz(Head(layer, head), two_clusters(layer, 33, head=head), "mixed").value
        assert steep.item() > local_lipschitz(Head(layer, head), random, "mixed", restarts=4).value.max().item()


def test_the_ascent_comes_near_the_theorem():
    layer = scalar_layer(6)
    start = tokens(8, 6, 1, scale=3)
    first = local_lipschitz(layer, start, math.inf).value
    found = ascend(layer, start, math.inf, steps=120, lr=0.05, restarts=4)
    bound = layer.lipschitz_bound(math.inf).item()
    assert (found.constant.value >= first * (1 - 1e-9)).all()
    assert 0.7 * bound <= found.constant.value.max().item() <= bound
    torch.testing.assert_close(local_lipschitz(layer, found.x, math.inf).value, found.constant.value, rtol=1e-6, atol=0)


def test_the_ascent_is_a_function_of_its_seed_and_keeps_to_its_ball():
    layer, x = layer_of(DotProductAttention), tokens(3, 5, 6, scale=3)
    runs = [ascend(layer, x, "mixed", steps=5, radius=1.5, generator=torch.Generator().manual_seed(3)) for _ in "ab"]
    assert torch.equal(runs[0].x, runs[1].x)
    assert torch.equal(runs[0].constant.value, runs[1].constant.value)
    assert (runs[0].x.norm(dim=-1) <= 1.5 * (1 + 1e-12)).all()
    inside = x * (1.5 / x.norm(dim=-1, keepdim=True)).clamp_max(1)
    assert (runs[0].constant.value >= local_lipschitz(layer, inside, "mixed").value * (1 - 1e-9)).all()


@pytest.mark.parametrize("p", ALL_NORMS)
def test_the_ascent_climbs_in_every_norm(p):
    layer, x = layer_of(DotProductAttention, causal=False), tokens(4, 5, 6)
    gained = ascend(layer, x, p, steps=25, lr=0.1, restarts=4).constant.value / local_lipschitz(layer, x, p).value
    assert gained.min() > 1.5


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_dominant_token_costs_the_root_of_the_length(sign):
    layer = layer_of(DotProductAttention, width=4, heads=1, context=400, causal=False)
    with torch.no_grad():
        layer.query.weight.copy_(torch.eye(4))
        layer.key.weight.copy_(sign * torch.eye(4))
    constants = [local_lipschitz(layer, dominant_token(layer, n, 12.0)).value.item() for n in (25, 100, 400)]
    assert constants[1] / constants[0] == pytest.approx(2, rel=0.1)
    assert constants[2] / constants[1] == pytest.approx(2, rel=0.1)
