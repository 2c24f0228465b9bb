"""Measured constants against exact Jacobians; what a measurement must not disturb; the ascent against the theorem."""

import functools
import math

import pytest
import pytorch_lightning as pl
import torch
from jacobians import NORMS, block_row_sum, jacobian
from small_layers import layer_of, tokens
from torch import nn
from torch.utils.data import DataLoader

from lipformer.bounds.empirical import (
    Head,
    ascend,
    head_constants,
    local_lipschitz,
    model_constants,
    pairwise_ratios,
)
from lipformer.functional.linearization import Linearization
from lipformer.functional.sequence_norms import norming_functional, sequence_norm, steepest_point
from lipformer.models.transformer import CharTransformer
from lipformer.modules.attention import (
    ContractiveL2Attention,
    ContractiveL2DecoupledAttention,
    DotProductAttention,
    L2Attention,
    TiedL2Attention,
)
from lipformer.modules.embedding import TokenEmbedding
from lipformer.modules.feedforward import FeedForward
from lipformer.modules.linear import dense
from lipformer.modules.normalisations import ActNorm, LayerNorm, RMSNorm
from lipformer.modules.position import LearnedPosition
from lipformer.modules.residual import PostNorm, PreNorm

F64 = torch.float64
KINDS = [DotProductAttention, L2Attention, TiedL2Attention, ContractiveL2Attention]
ALL_NORMS = [2, math.inf, "mixed"]
CEILING = {2: NORMS[2], math.inf: NORMS[math.inf], "mixed": block_row_sum}


def language_model(**changes):
    options = {
        "width": 8,
        "heads": 2,
        "depth": 2,
        "context": 6,
        "attention": TiedL2Attention,
        "norm": LayerNorm,
        "residual": PreNorm,
        "feedforward": functools.partial(FeedForward, activation="gelu", expansion=2),
        "position": LearnedPosition,
        "embedding": TokenEmbedding,
        "linear": dense,
    }
    torch.manual_seed(0)
    return CharTransformer(11, **{**options, **changes}).double().eval()


# --- the three norms -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", ALL_NORMS)
def test_norms_and_the_vectors_that_attain_them(p):
    y = tokens(3, 4, 5)
    y[1] = 0
    y[2] *= 1e-200  # its squares vanish
    u, x = norming_functional(y, p), steepest_point(y, p)
    torch.testing.assert_close((u * y).flatten(1).sum(1), sequence_norm(y, p))
    dual = {2: lambda z: z.flatten(1).norm(dim=1), math.inf: lambda z: z.abs().sum((1, 2))}
    dual_norm = dual.get(p, lambda z: z.norm(dim=-1).sum(-1))
    torch.testing.assert_close(dual_norm(u), torch.tensor([1.0, 0.0, 1.0], dtype=F64))
    torch.testing.assert_close(sequence_norm(x, p), torch.tensor([1.0, 0.0, 1.0], dtype=F64))
    torch.testing.assert_close((x * y / 1e-200).flatten(1).sum(1)[2], dual_norm(y[2:] / 1e-200)[0])
    for other in tokens(50, 3, 4, 5, seed=1):
        other = other / sequence_norm(other, p)[:, None, None]
        assert ((other * y).flatten(1).sum(1) <= (x * y).flatten(1).sum(1) * (1 + 1e-12)).all()


def test_products_are_those_of_the_jacobian_from_one_call():
    layer, x = layer_of(TiedL2Attention, fused=False), tokens(2, 5, 6)
    calls = []
    linear = Linearization(lambda z: calls.append(1) or layer(z), x)
    full = jacobian(layer, x).detach().flatten(-2).flatten(1, 2)
    u, v = tokens(2, 5, 6, seed=1), tokens(2, 5, 6, seed=2)
    torch.testing.assert_close(linear.jvp(v).flatten(1), (full @ v.flatten(1)[..., None])[..., 0])
    torch.testing.assert_close(linear.vjp(u).flatten(1), (full.mT @ u.flatten(1)[..., None])[..., 0])
    torch.testing.assert_close(linear.gain(u, v), (linear.jvp(v) * u).flatten(1).sum(1))
    assert len(calls) == 1


# --- against exact Jacobians -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "causal", "dtype"),
    [
        *((kind, True, F64) for kind in KINDS),
        (DotProductAttention, False, F64),
        (TiedL2Attention, False, torch.float32),
    ],
)
def test_local_constants_are_those_of_the_jacobian(kind, causal, dtype):
    layer, x = layer_of(kind, causal=causal), tokens(4, 5, 6, scale=1.5)
    full = jacobian(layer, x).detach()
    rounding = 1e-9 if dtype == F64 else 1e-4
    for p in ALL_NORMS:
        exact = NORMS[p](full)
        found = local_lipschitz(layer.to(dtype), x.to(dtype), p)
        layer.double()
        assert found.converged.all()
        assert found.value.shape == (4,)
        assert found.value.dtype == dtype
        assert (found.value <= CEILING[p](full) * (1 + rounding)).all(), p
        assert (found.value >= exact * (0.997 if p == 2 else 0.9)).all(), p
        assert found.value.sum() >= 0.98 * exact.sum(), p
        image = torch.einsum("bikjl,bjl->bik", full, found.direction.double())
        torch.testing.assert_close(sequence_norm(image, p), found.value.double(), rtol=rounding, atol=0)
        torch.testing.assert_close(sequence_norm(found.direction, p), torch.ones(4, dtype=dtype))


def test_other_shapes_of_inputs_and_outputs():
    a = tokens(7, 3)
    found = local_lipschitz(lambda x: x @ a.mT, tokens(5, 3), 2, tolerance=1e-12, max_iterations=500)
    torch.testing.assert_close(found.value, torch.linalg.matrix_norm(a, 2).expand(5), rtol=1e-9, atol=0)
    assert local_lipschitz(lambda x: x @ a.mT, tokens(5, 3), math.inf).value[0] == pytest.approx(
        a.abs().sum(1).max().item()
    )


def slowly_converging(gap):
    """A linear map with two largest singular values that power iteration tells apart only slowly."""
    singular = torch.cat([torch.tensor([1.0, 1 - gap], dtype=F64), torch.full((60,), 1 - 2 * gap, dtype=F64)])
    return lambda x: 1e6 * x * singular


def test_converged_says_what_is_left():
    x = tokens(1, 62)
    once = local_lipschitz(slowly_converging(1e-2), x, max_iterations=1)
    assert once.iterations == 1
    assert not once.converged.any()
    assert once.value.item() <= 1e6
    few = local_lipschitz(slowly_converging(1e-2), x, max_iterations=30, tolerance=1e-6)
    assert (few.iterations, few.converged.any().item()) == (30, False)
    for tolerance in (1e-2, 1e-4, 1e-6):
        done = local_lipschitz(slowly_converging(1e-2), x, max_iterations=2000, tolerance=tolerance)
        assert done.converged.all()
        assert 1e6 >= done.value.item() >= 1e6 * (1 - 3 * tolerance)


def test_the_tolerance_is_relative():
    """The same function in other units takes as many iterations; a threshold on the value itself would not."""
    layer, x = layer_of(TiedL2Attention), tokens(2, 5, 6)
    found = {size: local_lipschitz(lambda z, s=size: s * layer(z, fused=False), x) for size in (1e-6, 1.0, 1e6)}
    assert len({result.iterations for result in found.values()}) == 1
    for size, result in found.items():
        torch.testing.assert_close(result.value, size * found[1.0].value, rtol=1e-9, atol=0)


def test_flat_and_broken_functions():
    flat = local_lipschitz(lambda x: 0 * x, tokens(2, 3, 4))
    assert flat.converged.all()
    assert (flat.value == 0).all()
    broken = local_lipschitz(lambda x: x * torch.tensor([1.0, math.nan], dtype=F64)[:, None, None], tokens(2, 3, 4))
    assert broken.value[0] == pytest.approx(1)
    assert broken.value[1].isnan()
    assert broken.converged.tolist() == [True, False]


@pytest.mark.parametrize("options", [{"max_iterations": 0}, {"restarts": 0}, {"p": 3}])
def test_what_cannot_be_measured_is_refused(options):
    with pytest.raises(ValueError, match="must be"):
        local_lipschitz(torch.sin, tokens(1, 2, 2), **options)


# --- what a measurement must not disturb ------------------------------------------------------------------------


@pytest.mark.parametrize("surroundings", [torch.no_grad, torch.inference_mode])
def test_gradients_are_found_where_they_are_switched_off(surroundings):
    layer = layer_of(DotProductAttention)
    x = tokens(2, 5, 6)
    expected = [local_lipschitz(layer, x, p).value for p in ALL_NORMS]
    with surroundings():
        inside = tokens(2, 5, 6)  # an inference tensor, where that is what is made
        for p, value in zip(ALL_NORMS, expected, strict=True):
            torch.testing.assert_close(local_lipschitz(layer, inside, p).value, value, rtol=1e-9, atol=0)
        born_inside = layer_of(DotProductAttention)
        torch.testing.assert_close(local_lipschitz(born_inside, inside).value, expected[0])
        assert ascend(layer, inside, steps=2).x.shape == x.shape
        assert (pairwise_ratios(layer, inside, 2 * inside) > 0).all()
        assert not torch.is_grad_enabled()


def test_autocast_and_half_precision_do_not_reach_it():
    layer, x = layer_of(TiedL2Attention).float(), tokens(2, 5, 6, dtype=torch.float32)
    expected = local_lipschitz(layer, x).value
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(local_lipschitz(layer, x).value, expected)
    rounded = local_lipschitz(layer.bfloat16(), x.bfloat16()).value
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, expected, rtol=0.05, atol=0)


def test_a_module_is_left_as_it_was():
    model = language_model(norm=ActNorm, dropout=0.3).train()  # would set scales from its first batch, and draws noise
    ids = torch.arange(12).reshape(2, 6) % 11
    model.blocks[0].train(False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    fused = [getattr(module, "fused", None) for module in model.modules()]
    torch.manual_seed(5)
    random = torch.rand(3)
    torch.manual_seed(5)
    x = tokens(2, 6, 8)
    x.requires_grad_()
    local_lipschitz(model.trunk, x, math.inf)
    ascend(model.trunk, x, steps=2)
    pairwise_ratios(model.trunk, x, 2 * x)
    head_constants(model.blocks[1].attention.branch, x)
    assert torch.equal(torch.rand(3), random)
    assert not model.blocks[1].attention.norm.initialised
    model.eval()
    model_constants(model, ids)
    model.train()
    model.blocks[0].train(False)
    assert x.grad is None
    assert x.requires_grad
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert [getattr(module, "fused", None) for module in model.modules()] == fused
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_dropout_is_drawn_once():
    """In train mode the constant is that of one mask: 1/(1 - p) where anything is kept."""
    dropout = nn.Dropout(0.5).train()
    torch.manual_seed(0)
    assert local_lipschitz(dropout, tokens(1, 5, 6)).value.item() == pytest.approx(2)
    assert pairwise_ratios(dropout, tokens(1, 5, 6), -tokens(1, 5, 6)).item() <= 2 + 1e-12


class CountProducts(torch.autograd.Function):
    """The identity, which counts the backward passes through it: a J' u is one, a J v another."""

    count = 0

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        CountProducts.count += 1
        return CountProducts.apply(gradient)


def test_the_work_is_two_products_an_iteration_and_one_call():
    layer, x = layer_of(TiedL2Attention, fused=False), tokens(2, 5, 6)
    calls = []

    def counted(z):
        calls.append(1)
        CountProducts.count = 0
        return layer(CountProducts.apply(z))

    found = local_lipschitz(counted, x, max_iterations=20, tolerance=0.0, restarts=1)
    assert found.iterations == 20
    assert len(calls) == 1
    # one to prepare, one J v of the start, and a J' u and a J v an iteration
    assert CountProducts.count == 1 + 1 + 2 * 20


class Measures(pl.LightningModule):
    """Measures in Lightning's test loop, which computes in inference mode."""

    def __init__(self):
        super().__init__()
        self.layer = layer_of(DotProductAttention)

    def test_step(self, batch, batch_idx):
        assert torch.is_inference_mode_enabled()
        self.log("constant", local_lipschitz(self.layer, batch).value.max())


def test_lightnings_test_loop():
    x = tokens(3, 5, 6)
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    module = Measures()
    (figures,) = trainer.test(module, DataLoader(x, batch_size=3), verbose=False)
    assert figures["constant"] == pytest.approx(NORMS[2](jacobian(module.layer, x)).max().item(), rel=3e-3)


# --- parts of a model -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_heads_sum_to_the_layer(kind):
    layer, x = layer_of(kind, width=6, heads=3), tokens(2, 5, 6)
    torch.testing.assert_close(sum(Head(layer, h)(x) for h in range(3)), layer(x))
    constants = head_constants(layer, x)
    assert constants.shape == (2, 3)
    for h in range(3):
        exact = NORMS[2](jacobian(Head(layer_of(kind, width=6, heads=3, fused=False), h), x))
        torch.testing.assert_close(constants[:, h], exact, rtol=3e-3, atol=0)
    assert (constants.sum(1) >= local_lipschitz(layer, x).value).all()


def test_what_has_no_heads_is_refused():
    with pytest.raises(ValueError, match="no bias-free projection"):
        Head(nn.Linear(3, 3), 0)
    with pytest.raises(ValueError, match="head 2 of 2"):
        Head(layer_of(TiedL2Attention), 2)
    with pytest.raises(ValueError, match="does not call 'out'"):
        Head(layer_of(ContractiveL2DecoupledAttention), 0)(tokens(1, 5, 6))


@pytest.mark.parametrize("residual", [PreNorm, PostNorm])
def test_model_constants_are_of_each_part_at_the_input_it_gets(residual):
    model = language_model(residual=residual, norm=RMSNorm)
    ids = torch.randint(11, (2, 6), generator=torch.Generator().manual_seed(1))
    found = model_constants(model, ids, tolerance=1e-5)
    parts = ["", ".branch", ".norm"]
    names = [f"blocks.{i}.{name}{part}" for i in (0, 1) for name in ("attention", "feedforward") for part in parts]
    assert list(found) == [*names, "final_norm", "trunk", "logits"]
    with torch.no_grad():
        x = model.embed(ids)
        between = model.blocks[0](x)
    for block in model.blocks:
        block.attention.branch.fused = False
    expected = {
        "trunk": jacobian(model.trunk, x),
        "logits": jacobian(lambda z: model.unembedding(model.trunk(z)), x),
        "blocks.1.attention": jacobian(model.blocks[1].attention, between),
        "blocks.1.attention.branch": jacobian(
            model.blocks[1].attention.branch,
            model.blocks[1].attention.norm(between) if residual is PreNorm else between,
        ),
    }
    for name, full in expected.items():
        torch.testing.assert_close(found[name].value, NORMS[2](full).detach(), rtol=2e-3, atol=0)
