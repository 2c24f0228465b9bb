"""Ranges of the tensors between layers: each is measured once, under one name, and the layers' ratios."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from watched_models import SYMBOLS, WIDTH, build, ids, invertible

from lipformer.models.lstm import CharLSTM
from lipformer.modules.attention import DotProductAttention
from lipformer.modules.linear import sigma_reparam
from lipformer.modules.normalisations import LayerNorm, NoNorm
from lipformer.modules.residual import ConvexResidual, PostNorm, PreNorm, WeightedResidual
from lipformer.telemetry.constants import LocalConstants
from lipformer.telemetry.layers import SPREAD, distinct_tensors, pass_through, range_statistics, watched_layers

RATIOS = ("range_ratio", "std_ratio")


def layered(residual):
    return lambda *parts: residual(*parts, layers=8)


MODELS = {
    "post_norm": lambda: build(depth=4),
    "pre_norm": lambda: build(residual=PreNorm, depth=4),
    "pre_norm, norm=none": lambda: build(DotProductAttention, NoNorm, PreNorm, depth=4),
    "weighted": lambda: build(residual=layered(WeightedResidual), depth=4),
    "convex": lambda: build(residual=layered(ConvexResidual), depth=4),
    "invertible": invertible,
    "lstm": lambda: CharLSTM(SYMBOLS, width=WIDTH, depth=2, context=9, dropout=0.1).double(),
}


def flow(model):
    """The tensors from the embedding to the features, and input and output of each layer, computed by hand."""
    with torch.no_grad():
        x = model.embed(ids())
        features = model.trunk(x)
        ends, tensors = {"trunk": (x, features)}, [x]
        for number, block in enumerate(getattr(model, "blocks", [])):
            middle = block.attention(x)
            out = block.feedforward(middle)
            ends[f"blocks.{number}"] = (x, out)
            ends[f"blocks.{number}.attention"] = (x, middle)
            ends[f"blocks.{number}.feedforward"] = (middle, out)
            tensors += [middle, out]
            x = out
        return ends, tensors if torch.equal(features, x) else [*tensors, features]


def spread(tensor):
    values = tensor.numpy().ravel()
    quantiles = [np.quantile(values, q, method="nearest") for q in (0.01, 0.5, 0.99)]
    return [values.min(), *quantiles, values.max(), values.std()]


@pytest.mark.parametrize("name", MODELS)
def test_each_tensor_is_measured_under_one_name(name):
    model = MODELS[name]().eval()
    found = {name: float(value) for name, value in range_statistics(pass_through(model, ids())).items()}
    names = [name.removesuffix("_min") for name in found if name.endswith("_min")]
    measured = [[found[f"{name}_{statistic}"] for statistic in SPREAD] for name in names]
    _, tensors = flow(model)
    assert len(names) == len(tensors)
    for tensor in tensors:
        (_only,) = [values for values in measured if values == pytest.approx(spread(tensor), rel=1e-12)]
    ratios = [name for name in found if name.endswith((*RATIOS, "/branch_gain"))]
    assert len(found) == len(SPREAD) * len(names) + len(ratios)


def test_names_of_the_tensors():
    layers = [f"blocks.{n}.{layer}/output" for n in range(2) for layer in ("attention", "feedforward")]
    for residual, norm, features in (
        (PostNorm, LayerNorm, []),  # the last layer's output is the trunk's
        (PreNorm, LayerNorm, ["trunk/output"]),
        (PreNorm, NoNorm, []),
    ):
        passed = pass_through(build(norm=norm, residual=residual), ids())
        assert list(distinct_tensors(passed)) == ["trunk/input", *layers, *features]
    assert list(distinct_tensors(pass_through(MODELS["lstm"](), ids()))) == ["trunk/input", "trunk/output"]


@pytest.mark.parametrize("name", MODELS)
def test_ratios_are_those_of_the_layers(name):
    model = MODELS[name]().eval()
    found = {name: float(value) for name, value in range_statistics(pass_through(model, ids())).items()}
    ends, _ = flow(model)
    if name == "lstm":
        ends["dropout"] = (ends["trunk"][1],) * 2
    assert {name.rpartition("/")[0] for name in found if name.endswith(RATIOS)} == set(ends)
    for layer, (before, after) in ends.items():
        spans = [float(tensor.max() - tensor.min()) for tensor in (before, after)]
        assert found[f"{layer}/range_ratio"] == pytest.approx(spans[1] / spans[0])
        deviations = [float(tensor.std(correction=0)) for tensor in (before, after)]
        assert found[f"{layer}/std_ratio"] == pytest.approx(deviations[1] / deviations[0])
    gains = {name.rpartition("/")[0] for name in found if name.endswith("/branch_gain")}
    assert gains == {layer for layer in ends if layer.endswith((".attention", ".feedforward"))}


class OneLayer(nn.Module):
    """A block that does not say what it is made of."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH).double()

    def forward(self, x):
        return self.inner(x).sin()


def test_a_block_of_ones_own_has_the_name_of_its_output():
    model = build(depth=1)
    model.blocks.append(OneLayer())
    model.blocks.append(nn.Sequential(OneLayer(), nn.Identity()))
    assert list(distinct_tensors(pass_through(model, ids()))) == [
        "trunk/input",
        "blocks.0.attention/output",
        "blocks.0.feedforward/output",
        "blocks.1/output",
        "blocks.2.0/output",  # the identity returns the same tensor
    ]


def test_a_stack_behind_the_blocks_has_a_name_for_what_passes_within_it():
    model = build(depth=1)
    model.final_norm = nn.Sequential(OneLayer(), nn.ReLU(), OneLayer())
    names = list(distinct_tensors(pass_through(model, ids())))
    assert names[3:] == ["trunk/output", "final_norm.0/output", "final_norm.1/output"]


def test_what_a_model_does_between_its_layers_shows_as_an_input():
    model = build(depth=1)
    original = model.blocks.forward
    model.blocks.forward = lambda x: original(3 * x)
    passed = pass_through(model, ids())
    found = range_statistics(passed)
    assert list(distinct_tensors(passed))[-1] == "blocks.0.attention/input"
    assert float(found["blocks.0.attention/input_max"]) == pytest.approx(3 * float(found["trunk/input_max"]))


def test_an_embedding_of_another_name_has_no_range_of_its_ids():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.symbols, self.network = nn.Embedding(SYMBOLS, WIDTH), nn.Linear(WIDTH, WIDTH)

        def embed(self, ids):
            return self.symbols(ids)

        def trunk(self, x):
            return self.network(x).sin()

    torch.manual_seed(0)
    passed = pass_through(Model(), ids())
    assert list(distinct_tensors(passed)) == ["trunk/input", "trunk/output", "network/output"]
    assert all(value.isfinite() for value in range_statistics(passed).values())


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
    assert math.isnan(found["blocks.1.feedforward/output_max"])
    assert math.isnan(found["trunk/range_ratio"])
    assert math.isfinite(found["blocks.0.feedforward/output_max"])


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
