"""Norms of weights, local Lipschitz constants and inverses, against direct computations in float64."""

import math

import numpy as np
import pytest
import torch
from watched_models import CONTEXT, HEADS, WIDTH, build, ids, invertible

from lipformer.bounds.certificate import certify
from lipformer.modules.attention import ContractiveL2Attention, DotProductAttention, TiedL2Attention
from lipformer.modules.feedforward import NoFeedForward
from lipformer.modules.linear import sigma_reparam
from lipformer.modules.normalisations import ActNorm
from lipformer.telemetry.constants import LocalConstants, contraction_rate, inversion_statistics, weight_norms
from lipformer.telemetry.layers import pass_through


def test_norms_of_weights_are_those_of_the_maps():
    branch = build(DotProductAttention).blocks[0].attention.branch
    found = weight_norms(branch)
    assert set(found) == {f"{name}_norm_{p}" for name in ("query", "key", "value", "out") for p in ("2", "inf")}
    for name in ("query", "key", "value", "out"):
        weight = getattr(branch, name).weight.detach().numpy()
        assert float(found[f"{name}_norm_2"]) == pytest.approx(np.linalg.norm(weight, 2))
        assert float(found[f"{name}_norm_inf"]) == pytest.approx(np.linalg.norm(weight, np.inf))


def test_norms_of_a_parametrised_weight_are_of_the_weight_it_computes():
    part = build(linear=sigma_reparam).blocks[0].feedforward.branch
    found = weight_norms(part)
    assert float(found["expand_norm_2"]) == pytest.approx(np.linalg.norm(part.expand.weight.detach().numpy(), 2))


def test_norms_of_contractive_layers_are_of_the_factors_they_use():
    model = invertible()
    attention, feedforward = model.blocks[0].attention.branch, model.blocks[0].feedforward.branch
    query, maps, out = (factor.detach() for factor in attention.factors())
    found = weight_norms(attention)
    root = attention.log_temperature.detach().exp().sqrt()[:, None, None]
    stacked = torch.cat(list(query.mT * root)).numpy()
    assert float(found["query_norm_2"]) == pytest.approx(np.linalg.norm(stacked, 2))
    assert float(found["value_norm_2"]) == pytest.approx(max(np.linalg.norm(m.numpy(), 2) for m in maps))
    assert float(found["value_norm_inf"]) == pytest.approx(max(np.linalg.norm(m.mT.numpy(), np.inf) for m in maps))
    assert float(found["out_norm_inf"]) == pytest.approx(np.linalg.norm(out.numpy(), np.inf))
    with torch.no_grad():
        attention.log_temperature.add_(math.log(9.0))
    assert float(weight_norms(attention)["query_norm_2"]) == pytest.approx(3 * float(found["query_norm_2"]))
    maps = weight_norms(feedforward)
    assert float(maps["expand_norm_2"]) == pytest.approx(1.0, abs=1e-3)
    assert float(maps["contract_norm_2"]) <= feedforward.scale / feedforward.slope + 1e-9


def test_norms_of_a_divided_layer_do_not_grow_with_its_values():
    layer = ContractiveL2Attention(WIDTH, HEADS, context=CONTEXT).double()
    before = weight_norms(layer)
    with torch.no_grad():
        layer.value.weight.mul_(10)
    after = weight_norms(layer)
    assert float(after["value_norm_2"]) == pytest.approx(float(before["value_norm_2"]))
    assert float(after["value_norm_2"]) < np.linalg.norm(layer.value.weight.detach().numpy(), 2) / 5


def test_a_branch_that_is_always_zero_has_constant_zero():
    model = build(feedforward=NoFeedForward)
    found = LocalConstants(model.eval(), 2).measure(ids(1))
    assert float(found["blocks.0.feedforward.branch/local_lipschitz"]) == 0.0
    assert float(found["trunk/local_lipschitz"]) > 0


@pytest.mark.parametrize("p", [2, "mixed"])
def test_local_constants_approach_the_jacobians_norm_from_below(p):
    model = build(TiedL2Attention, ActNorm).train()
    model(ids())
    model.eval()
    passed = pass_through(model, ids(1, 4))
    constants = LocalConstants(model, p, iterations=6)
    first, again = (
        {name.removesuffix("/local_lipschitz"): value for name, value in constants.measure(ids(1, 4)).items()}
        for _ in range(2)
    )
    certificate = {row.name: row.bound for row in certify(model, p).rows}
    assert {"blocks.0.attention", "blocks.0.attention.branch", "trunk", "logits"} <= set(first)
    for name, module in (("blocks.1.feedforward.branch", model.blocks[1].feedforward.branch), ("trunk", model.trunk)):
        x = passed[name].x
        jacobian = torch.autograd.functional.jacobian(
            lambda t, f=module, s=x.shape: f(t.reshape(s)).flatten(), x.flatten()
        )
        if p == 2:
            exact = float(torch.linalg.matrix_norm(jacobian, 2))
            assert float(again[name]) <= exact * (1 + 1e-9)
            assert float(again[name]) >= 0.98 * exact, name
        assert float(again[name]) >= float(first[name]) * (1 - 1e-9), "it goes on from where it was"
        if name in certificate:
            assert float(again[name]) <= certificate[name] * (1 + 1e-9)


def test_inverses_and_their_rate():
    model = invertible().eval()
    passed = pass_through(model, ids())
    found = {name: float(value) for name, value in inversion_statistics(model, passed).items()}
    layers = [f"blocks.{n}.{part}" for n in range(2) for part in ("attention", "feedforward")]
    assert set(found) == {
        *(f"{layer}/{quantity}" for layer in layers for quantity in ("contraction_rate", "reconstruction_error")),
        "trunk/reconstruction_error",
    }
    for layer in layers:
        branch = dict(model.named_modules())[layer].branch
        assert found[f"{layer}/reconstruction_error"] < 1e-12
        assert 0 < found[f"{layer}/contraction_rate"] <= float(branch.contraction_bound()) + 1e-9
    assert found["trunk/reconstruction_error"] < 1e-10


def test_what_is_not_invertible_is_not_inverted():
    model = build().eval()
    assert inversion_statistics(model, pass_through(model, ids())) == {}


def test_contraction_rate_of_a_linear_map_is_its_factor():
    y = torch.randn(2, 3, 4, dtype=torch.float64)
    assert contraction_rate(lambda x: 0.37 * x, y) == pytest.approx(0.37, rel=1e-9)
    assert math.isnan(contraction_rate(torch.zeros_like, y)), "no second step"
    assert contraction_rate(lambda x: 1.5 * x, y) == pytest.approx(1.5, rel=1e-9)
