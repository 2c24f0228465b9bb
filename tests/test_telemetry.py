"""What is watched of gradients, ranges, weights and constants, against direct computations in float64."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from lipformer.bounds.certificate import certify
from lipformer.data.sentences import Sentences
from lipformer.models.transformer import CharTransformer
from lipformer.modules.attention import (
    ContractiveL2Attention,
    ContractiveL2DecoupledAttention,
    DotProductAttention,
    TiedL2Attention,
)
from lipformer.modules.embedding import TokenEmbedding
from lipformer.modules.feedforward import ContractiveFeedForward, FeedForward, NoFeedForward
from lipformer.modules.linear import dense, sigma_reparam
from lipformer.modules.normalisations import ActNorm, LayerNorm
from lipformer.modules.position import SinusoidalPosition
from lipformer.modules.residual import ConvexResidual, InvertibleResidual, PostNorm, PreNorm, WeightedResidual
from lipformer.telemetry.constants import LocalConstants, contraction_rate, inversion_statistics, weight_norms
from lipformer.telemetry.diagnosis import nonfinite_gradient, nonfinite_output, nonfinite_parameter
from lipformer.telemetry.layers import pass_through, range_statistics, watched_layers
from lipformer.telemetry.optimisation import UpdateWatch, layer_norms, layer_parameters
from lipformer.telemetry.probe import probe_batch

WIDTH, HEADS, CONTEXT, SYMBOLS = 8, 2, 16, 11


def build(attention=TiedL2Attention, norm=LayerNorm, residual=PostNorm, feedforward=FeedForward, depth=2, linear=dense):
    torch.manual_seed(0)
    model = CharTransformer(
        SYMBOLS,
        width=WIDTH,
        heads=HEADS,
        depth=depth,
        context=CONTEXT,
        attention=attention,
        norm=norm,
        residual=residual,
        feedforward=feedforward,
        position=SinusoidalPosition,
        embedding=TokenEmbedding,
        linear=linear,
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # biases that are not zero, scales that differ
    return model


def invertible():
    model = build(ContractiveL2DecoupledAttention, ActNorm, InvertibleResidual, ContractiveFeedForward)
    model.train()
    model(ids())  # sets the norms
    return model


def ids(batch=3, tokens=9):
    return torch.randint(0, SYMBOLS, (batch, tokens), generator=torch.Generator().manual_seed(1))


# --- the training step -----------------------------------------------------------------------------------------


def test_every_parameter_belongs_to_one_layer():
    model = build()
    layers = layer_parameters(model)
    assert list(layers) == [
        "embedding",
        "blocks.0.attention",
        "blocks.0.feedforward",
        "blocks.1.attention",
        "blocks.1.feedforward",
        "unembedding",
    ]
    counted = [id(p) for group in layers.values() for p in group]
    assert sorted(counted) == sorted(map(id, model.parameters()))
    named = dict(model.named_modules())
    assert all(name in named for name in layers)


def test_a_shared_parameter_counts_once():
    model = build()
    model.unembedding.weight = model.embedding.weight
    assert sum(p is model.unembedding.weight for group in layer_parameters(model).values() for p in group) == 1


def test_step_is_measured_as_it_is_taken():
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    watch = UpdateWatch(model)
    before = {name: [p.detach().clone() for p in group] for name, group in layer_parameters(model).items()}
    (10 * model(ids()).logsumexp(-1).sum()).backward()
    raw = {name: [p.grad.clone() for p in group] for name, group in layer_parameters(model).items()}
    watch.before()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    found = {name: float(value) for name, value in watch.after().items()}

    def norm(groups):
        return float(torch.cat([t.flatten() for group in groups for t in group]).norm())

    layers = layer_parameters(model)
    for name, members in [(name, [name]) for name in layers] + [("total", list(layers))]:
        old, new = [before[m] for m in members], [[p.detach() for p in layers[m]] for m in members]
        change = [[b - a for a, b in zip(x, y, strict=True)] for x, y in zip(old, new, strict=True)]
        clipped = [[p.grad for p in layers[m]] for m in members]
        assert found[f"{name}/gradient_norm"] == pytest.approx(norm([raw[m] for m in members]), rel=1e-12)
        assert found[f"{name}/gradient_norm_clipped"] == pytest.approx(norm(clipped), rel=1e-12)
        assert found[f"{name}/parameter_norm"] == pytest.approx(norm(old), rel=1e-12)
        assert found[f"{name}/update_norm"] == pytest.approx(norm(change), rel=1e-12)
        assert found[f"{name}/update_ratio"] == pytest.approx(norm(change) / norm(old), rel=1e-12)
    assert found["total/gradient_norm"] > 0.5
    assert found["total/gradient_norm_clipped"] == pytest.approx(0.5, rel=1e-4)
    assert watch.after() == {}, "each step is measured once"


def test_norms_of_no_gradients_are_zero_and_of_half_precision_do_not_overflow():
    assert {k: float(v) for k, v in layer_norms({"a": [None]}).items()} == {"a": 0.0, "total": 0.0}
    assert float(layer_norms({"a": [torch.full((4,), 1e100, dtype=torch.float64)]})["total"]) == pytest.approx(2e100)
    large = torch.full((100,), 6e4, dtype=torch.float16)
    norms = layer_norms({"a": [large, None], "b": [None]})
    assert float(norms["a"]) == pytest.approx(6e5, rel=1e-3)
    assert float(norms["b"]) == 0.0
    assert float(norms["total"]) == pytest.approx(6e5, rel=1e-3)


# --- ranges ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("residual", [PostNorm, PreNorm])
def test_ranges_are_those_of_the_layers(residual):
    model = build(residual=residual)
    x = model.embed(ids())
    passed = pass_through(model, ids())
    found = {name: float(value) for name, value in range_statistics(passed).items()}
    with torch.no_grad():
        flow = {"trunk": (x, model.trunk(x))}
        for number, block in enumerate(model.blocks):
            middle, out = block.attention(x), block(x)
            flow[f"blocks.{number}"] = (x, out)
            flow[f"blocks.{number}.attention"] = (x, middle)
            flow[f"blocks.{number}.feedforward"] = (middle, out)
            x = out
    assert {name.rpartition("/")[0] for name in found} == set(flow)
    for name, (before, after) in flow.items():
        for end, tensor in (("input", before), ("output", after)):
            values = tensor.detach().numpy().ravel()
            assert found[f"{name}/{end}_min"] == pytest.approx(values.min())
            assert found[f"{name}/{end}_max"] == pytest.approx(values.max())
            assert found[f"{name}/{end}_std"] == pytest.approx(values.std())
            for key, q in (("q01", 0.01), ("q50", 0.5), ("q99", 0.99)):
                assert found[f"{name}/{end}_{key}"] == np.quantile(values, q, method="nearest")
        spans = [float(t.max() - t.min()) for t in (before, after)]
        assert found[f"{name}/range_ratio"] == pytest.approx(spans[1] / spans[0])
        assert found[f"{name}/std_ratio"] == pytest.approx(float(after.std() / before.std()))


@pytest.mark.parametrize("residual", [PostNorm, PreNorm, WeightedResidual, ConvexResidual])
def test_branch_gain_is_what_the_branch_adds_over_the_skip(residual):
    layered = residual in (WeightedResidual, ConvexResidual)
    model = build(residual=(lambda *a: residual(*a, layers=3)) if layered else residual)
    found = range_statistics(pass_through(model, ids()))
    layer = model.blocks[0].attention
    x = model.embed(ids()).detach()
    with torch.no_grad():
        if residual is PreNorm:
            skip, added = x, layer(x) - x
        elif residual is PostNorm:
            skip, added = x, layer.branch(x)
        elif residual is WeightedResidual:
            skip, added = x, layer.alpha * layer.branch(x)
        else:
            share = layer.logit.sigmoid()
            skip, added = (1 - share) * x, share * layer.branch(x)
    gain = float(added.square().mean().sqrt() / skip.square().mean().sqrt())
    assert float(found["blocks.0.attention/branch_gain"]) == pytest.approx(gain)


def test_nan_shows():
    model = build()
    with torch.no_grad():
        model.blocks[1].feedforward.branch.expand.bias[0] = math.nan
    found = range_statistics(pass_through(model, ids()))
    assert math.isnan(found["trunk/output_max"])
    assert math.isfinite(found["blocks.0/output_max"])


def test_watching_leaves_the_model_as_it_was():
    model = build(linear=sigma_reparam).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.get_rng_state()
    passed = pass_through(model, ids())
    range_statistics(passed)
    LocalConstants(model, "mixed").measure(ids(1))
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert all(not module._forward_hooks for module in model.modules())
    assert set(passed) == {*(place.name for place in watched_layers(model)), "trunk"}


# --- the expensive ones ----------------------------------------------------------------------------------------


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


def test_a_layer_of_zeros_has_no_update_ratio():
    model = build()
    with torch.no_grad():
        for parameter in model.unembedding.parameters():
            parameter.zero_()
    watch = UpdateWatch(model)
    watch.before()
    with torch.no_grad():
        model.unembedding.bias.add_(1)
    assert watch.after()["unembedding/update_ratio"].isnan()


def test_a_mask_of_infinities_is_no_fault():
    model = build()
    model.register_buffer("mask", torch.full((3, 3), -math.inf).triu(1))
    assert nonfinite_parameter(model) is None
    model.mask[0, 0] = math.nan
    assert nonfinite_parameter(model) == "mask"


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


# --- the probe -------------------------------------------------------------------------------------------------


def test_probe_has_the_median_sentences_without_padding():
    sentences = Sentences([[1] * n for n in (30, 2, 11, 9, 10, 3, 40)])
    probe = probe_batch(sentences, 3, end_id=5)
    assert probe.shape == (3, 10)  # 9, 10 and 11 characters behind the end symbol, cut to the shortest
    assert probe[:, 0].tolist() == [5, 5, 5]
    assert (probe[:, 1:] == 1).all()
    assert probe_batch(sentences, 99, end_id=5).shape == (7, 3)
    assert probe_batch(Sentences([[]]), 4, end_id=5).tolist() == [[5]]


# --- where it went wrong ---------------------------------------------------------------------------------------


def test_the_first_layer_that_is_not_finite_is_named():
    model = build()
    assert nonfinite_parameter(model) is None
    assert nonfinite_output(model, lambda: model(ids())) is None
    with torch.no_grad():
        model.blocks[1].attention.branch.query.weight.mul_(1e200)
    assert nonfinite_parameter(model) is None
    name = nonfinite_output(model, lambda: model(ids()))
    assert name is not None
    assert name.startswith("blocks.1.attention")
    with torch.no_grad():
        model.blocks[0].feedforward.branch.expand.bias[3] = math.inf
    assert nonfinite_parameter(model) == "blocks.0.feedforward.branch.expand.bias"
    assert nonfinite_output(model, lambda: model(ids())) == "blocks.0.feedforward.branch.expand"
    assert all(not module._forward_hooks for module in model.modules())


def test_the_gradient_at_fault_is_the_one_nearest_to_the_loss():
    model = build()
    model(ids()).sum().backward()
    assert nonfinite_gradient(model) is None
    for block in model.blocks:  # from there on it spreads to all layers before
        for parameter in block.attention.parameters():
            parameter.grad[:] = math.nan
    assert nonfinite_gradient(model) == "blocks.1.attention"


def test_a_gradient_whose_square_overflows_is_at_fault():
    model = build().float()
    model(ids()).sum().backward()
    model.blocks[0].feedforward.branch.expand.weight.grad.fill_(1e25)
    assert nonfinite_gradient(model) == "blocks.0.feedforward"


def test_what_is_compiled_stays_compiled():
    """Hooks come and go; the graphs that were compiled without them are used again."""
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    model, counter = build().train(), CompileCounter()
    model.compile(backend=counter, dynamic=True)
    model(ids()).sum().backward()
    compiled = counter.frame_count
    assert compiled > 0
    pass_through(model, ids())
    LocalConstants(model, "mixed").measure(ids(1))
    certify(model, "mixed")
    nonfinite_output(model, lambda: model.trunk(model.embed(ids())))
    model(ids()).sum().backward()
    assert counter.frame_count == compiled
    torch._dynamo.reset()
