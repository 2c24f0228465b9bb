"""Linear maps under sigma-reparametrisation: the value, the gradient, the step of power iteration, the checkpoint."""

import copy
import functools
import itertools
import math

import pytest
import torch
from test_model import build
from torch import nn

from lipformer.functional import spectral
from lipformer.modules.attention import TiedL2Attention
from lipformer.modules.linear import SigmaReparam, dense, one_weight, sigma_reparam
from lipformer.training.parameter_groups import parameter_groups


def reparametrised(inputs=6, outputs=5):
    torch.manual_seed(0)
    linear = nn.Linear(inputs, outputs).double()
    before = linear.weight.detach().clone()
    sigma_reparam(linear)
    return linear, before, linear.parametrizations.weight[0]


def directions(model):
    return {name: buffer.clone() for name, buffer in model.named_buffers() if name.endswith(".u")}


def test_the_initial_weight_stays_and_gamma_is_its_norm():
    linear, before, part = reparametrised()
    torch.testing.assert_close(linear.weight, before)
    torch.testing.assert_close(part.gamma, torch.linalg.matrix_norm(before, 2))
    with torch.no_grad():
        part.gamma.mul_(3)
        linear.parametrizations.weight.original.mul_(7)
    torch.testing.assert_close(linear.weight, 3 * before, msg="W counts by its direction alone")


def test_gradient_is_that_of_the_singular_values():
    """u and v constants, as if sigma were the 2-norm itself: exact where u is the singular vector."""
    linear, before, part = reparametrised()
    cotangent = torch.randn_like(before)
    (found,) = torch.autograd.grad((linear.weight * cotangent).sum(), linear.parametrizations.weight.original)
    leaf = before.clone().requires_grad_()
    weight = part.gamma.detach() * leaf / torch.linalg.matrix_norm(leaf, 2)
    (expected,) = torch.autograd.grad((weight * cotangent).sum(), leaf)
    torch.testing.assert_close(found, expected)


def test_steps_of_power_iteration_follow_a_moved_weight():
    linear, _, part = reparametrised(20, 30)
    original = linear.parametrizations.weight.original
    with torch.no_grad():
        original.copy_(torch.randn_like(original))
    exact, sizes = spectral.exact(original), []
    for _ in range(200):
        sizes.append((part.gamma / linear.weight.norm() * original.norm()).item())  # sigma
        part.advance(original)
    assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(sizes)), "never away from the norm"
    assert sizes[0] < 0.9 * exact
    assert sizes[-1] == pytest.approx(exact.item(), rel=1e-3)
    assert sizes[-1] <= exact * (1 + 1e-12)


def test_reading_the_weight_changes_nothing():
    linear, _, part = reparametrised()
    before = part.u.clone()
    linear.train()
    assert torch.equal(linear.weight, linear.weight)
    linear(torch.randn(3, 6, dtype=torch.float64))
    assert torch.equal(part.u, before)


def move(model):
    """Move the weights off, so that a step of power iteration shows."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)


@pytest.mark.parametrize("attention", [None, TiedL2Attention])
def test_a_training_forward_takes_exactly_one_step(attention):
    changes = {} if attention is None else {"attention": attention}
    model = build(linear=sigma_reparam, **changes)
    move(model)
    parametrised = [m for m in model.blocks.modules() if isinstance(m, nn.Linear)]
    assert all(nn.utils.parametrize.is_parametrized(m) for m in parametrised)
    assert not nn.utils.parametrize.is_parametrized(model.unembedding)
    expected = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module is not model.unembedding:
            weight, u = module.parametrizations.weight.original, module.parametrizations.weight[0].u
            u = weight @ weight.mT @ u
            expected[f"{name}.parametrizations.weight.0.u"] = (u / u.norm()).detach()
    ids = torch.randint(11, (2, 9))
    before = directions(model)
    model.eval()(ids)
    assert all(torch.equal(before[name], u) for name, u in directions(model).items()), "none in eval mode"
    model.train()(ids)
    found = directions(model)
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name])
        assert (found[name] - before[name]).norm() > 1e-6


def test_each_weight_is_computed_once_a_forward(monkeypatch):
    model = build(linear=sigma_reparam, attention=TiedL2Attention).train()
    calls = []
    original = SigmaReparam.forward
    monkeypatch.setattr(SigmaReparam, "forward", lambda self, weight: calls.append(self) or original(self, weight))
    model(torch.randint(11, (2, 9))).sum().backward()
    assert len(calls) == len(set(calls)) == sum(isinstance(m, SigmaReparam) for m in model.modules())


def test_without_parametrisation_nothing_is_cached():
    model = build(linear=dense)
    with one_weight(model):
        assert nn.utils.parametrize._cache_enabled == 0


def test_bounds_do_not_advance_the_iteration_and_take_the_exact_norm():
    torch.manual_seed(0)
    layer = TiedL2Attention(8, 2, context=6).double()
    for linear in (layer.query, layer.value, layer.out):
        sigma_reparam(linear)
    move(layer)  # sigma is now below the norm, the weight's norm above gamma
    assert spectral.exact(layer.out.weight) > 1.01 * layer.out.parametrizations.weight[0].gamma
    plain = TiedL2Attention(8, 2, context=6).double()
    with torch.no_grad():
        for name in ("query", "value", "out"):
            getattr(plain, name).weight.copy_(getattr(layer, name).weight)
    before = directions(layer)
    layer.train()
    for p in (2, math.inf, "mixed"):
        torch.testing.assert_close(layer.lipschitz_bound(p), plain.lipschitz_bound(p), rtol=1e-12, atol=0)
    assert all(torch.equal(before[name], u) for name, u in directions(layer).items())


def test_the_state_holds_u_and_restores_the_weight():
    model = build(linear=sigma_reparam)
    move(model)
    model.train()(torch.randint(11, (2, 9)))
    other = build(linear=sigma_reparam)
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    ids = torch.randint(11, (2, 9))
    assert torch.equal(model.eval()(ids), other.eval()(ids))


def test_only_the_matrix_of_a_reparametrised_weight_decays():
    model = build(linear=sigma_reparam)
    decaying, others = (set(map(id, group["params"])) for group in parameter_groups(model))
    names = dict(model.named_parameters())
    matrices = {name for name in names if name.endswith("weight.original")} | {"unembedding.weight"}
    assert {name for name, parameter in names.items() if id(parameter) in decaying} == matrices
    assert decaying | others == set(map(id, names.values()))
    assert any(name.endswith("gamma") for name in names)


def test_sigma_is_computed_in_float32_under_autocast():
    torch.manual_seed(0)
    linear = nn.Linear(64, 64)
    sigma_reparam(linear)
    exact = linear.weight.detach().clone()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(linear.weight, exact)
        assert linear(torch.randn(2, 64)).dtype == torch.bfloat16
    linear.bfloat16()
    assert linear.weight.dtype == torch.bfloat16
    assert (linear.weight.double() - exact.double()).norm() < 1e-2 * exact.norm()


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_a_weight_without_direction_is_refused(value):
    linear = nn.Linear(3, 3)
    linear.weight.data.fill_(value)
    with pytest.raises(ValueError, match="has no direction"):
        sigma_reparam(linear)


def test_a_weight_that_became_zero_is_zero():
    linear, _, part = reparametrised()
    linear.parametrizations.weight.original.data.zero_()
    u = part.u.clone()
    part.advance(linear.parametrizations.weight.original)
    assert torch.equal(part.u, u)
    linear.weight.sum().backward()
    assert (linear.weight == 0).all()
    assert linear.parametrizations.weight.original.grad.isfinite().all()


def test_a_factory_may_carry_options():
    seen = []
    build(linear=functools.partial(lambda module, log: log.append(module), log=seen))
    assert len(seen) == 2 * (4 + 2)
    assert all(isinstance(module, nn.Linear) for module in seen)
