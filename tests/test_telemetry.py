"""What is measured of a training step and where a training went wrong, against direct computations in float64."""

import math

import pytest
import torch
from torch import nn
from watched_models import build, ids

from lipformer.bounds.certificate import certify
from lipformer.data.sentences import Sentences
from lipformer.telemetry.constants import LocalConstants
from lipformer.telemetry.diagnosis import nonfinite_gradient, nonfinite_output, nonfinite_parameter
from lipformer.telemetry.layers import pass_through
from lipformer.telemetry.optimisation import UpdateWatch, layer_norms, layer_parameters
from lipformer.telemetry.probe import probe_batch

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


def test_a_mask_of_infinities_is_no_fault():
    model = build()
    model.register_buffer("mask", torch.full((3, 3), -math.inf).triu(1))
    assert nonfinite_parameter(model) is None
    model.mask[0, 0] = math.nan
    assert nonfinite_parameter(model) == "mask"


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
