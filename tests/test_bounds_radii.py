"""Radii: certified ones withstand attack, and are attained where nothing is lost."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from lipformer.bounds.certificate import certify
from lipformer.bounds.empirical import FromEmbedding
from lipformer.bounds.radii import attacked_radii, certified_radii
from lipformer.functional.sequence_norms import sequence_norm, steepest_point
from lipformer.models.transformer import CharTransformer
from lipformer.modules.attention import TiedL2Attention
from lipformer.modules.embedding import TokenEmbedding
from lipformer.modules.feedforward import FeedForward
from lipformer.modules.linear import dense
from lipformer.modules.normalisations import NoNorm
from lipformer.modules.position import LearnedPosition
from lipformer.modules.residual import PostNorm

NORMS = (2, math.inf, "mixed")
DUAL = {2: 2, math.inf: 1, "mixed": 2}


@pytest.fixture
def head():
    torch.manual_seed(0)
    return nn.Linear(4, 5).double()


@pytest.mark.parametrize("p", NORMS)
def test_a_linear_model_attains_its_radius(head, p):
    """Behind a multiple of the identity, the shortest movement along two rows' difference changes the prediction."""
    x = torch.randn(1, 3, 4, dtype=torch.float64)

    def logits(x):
        return head(2.5 * x)

    radii = certified_radii(logits(x), head.weight, 2.5, p)[0]
    before = logits(x).argmax(-1)[0]
    for i, radius in enumerate(radii.tolist()):
        differences = head.weight[before[i]] - head.weight
        gaps = logits(x)[0, i, before[i]] - logits(x)[0, i]
        ratios = gaps / differences.norm(DUAL[p], dim=1)
        ratios[before[i]] = math.inf
        away = torch.zeros_like(x)
        away[0, i] = -steepest_point(differences[ratios.argmin()][None], p)[0]
        for factor, changes in ((0.999, False), (1.001, True)):
            after = logits(x + factor * radius * away).argmax(-1)[0]
            assert (after[i] != before[i]) == changes


def small_model(seed: int = 0) -> CharTransformer:
    """Two blocks of the real model whose certificate is not far from what they do."""
    torch.manual_seed(seed)
    model = CharTransformer(
        6,
        width=4,
        heads=1,
        depth=2,
        context=5,
        attention=TiedL2Attention,
        norm=lambda width: NoNorm(),
        residual=PostNorm,
        feedforward=partial(FeedForward, expansion=1),
        position=LearnedPosition,
        embedding=TokenEmbedding,
        linear=dense,
    )
    for block in model.blocks:
        for linear in (block.feedforward.branch.expand, block.feedforward.branch.contract):
            linear.weight.data *= 0.5
        for linear in (block.attention.branch.query, block.attention.branch.value, block.attention.branch.out):
            linear.weight.data *= 0.7
    model.unembedding.bias.data.normal_()
    return model.double().eval()


@pytest.mark.parametrize("p", NORMS)
def test_no_attack_within_the_radius_changes_the_prediction(p):
    """Each prediction is attacked by itself, at its own radius, by ascent of its nearest rival's logit."""
    model = small_model()
    ids = torch.randint(6, (8, 5))
    logits = model(ids).detach()
    radii = certified_radii(logits, model.unembedding.weight.detach(), certify(model, p).trunk, p)
    assert (radii > 0).all()
    assert radii.isfinite().all()
    x = model.embed(ids).detach()
    best = logits.argmax(-1)
    for position in range(5):
        radius = 0.999 * radii[:, position, None, None]
        delta = torch.zeros_like(x)
        for step in range(15):
            delta.requires_grad_(True)
            z = model.unembedding(model.trunk(x + delta))[:, position]
            symbol = best[:, position, None]
            gap = z.gather(-1, symbol) - z.scatter(-1, symbol, -math.inf).amax(-1, True)
            assert (gap > 0).all()
            (gradient,) = torch.autograd.grad(gap.sum(), delta)
            share = 2 / (step + 2)
            delta = (1 - share) * delta.detach() - share * radius * steepest_point(gradient, p)
            assert (sequence_norm(delta, p) <= radius.flatten() * (1 + 1e-12)).all()


@pytest.mark.parametrize("p", NORMS)
def test_certified_is_below_attacked(p):
    """The attack finds changes, none of them within a certified radius, and its own movement changes what it says."""
    model = small_model(1)
    ids = torch.randint(6, (4, 5))
    certified = certified_radii(model(ids).detach(), model.unembedding.weight.detach(), certify(model, p).trunk, p)
    x = model.embed(ids).detach()
    tried = (certified.amin() * torch.logspace(0, 4, 12, dtype=torch.float64)).tolist()
    found = attacked_radii(FromEmbedding(model), x, tried, p)
    assert found.isfinite().any()
    assert (found >= certified).all()
    assert set(found[found.isfinite()].tolist()) <= set(tried)


def test_an_attack_on_a_linear_model_finds_its_radius(head):
    x = torch.randn(12, 1, 4, dtype=torch.float64)
    for p in NORMS:
        certified = certified_radii(head(x).detach(), head.weight.detach(), 1.0, p)
        tried = [float(r) * factor for r in certified.flatten().sort().values for factor in (0.999, 1.001)]
        found = attacked_radii(head, x, sorted(tried), p, steps=3)
        assert (found >= certified).all()
        assert ((found / certified) < 1.3).double().mean() > 0.7


def test_only_the_tokens_asked_for_are_attacked(head):
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    chosen = torch.tensor([[True, False, False], [False, False, True]])
    found = attacked_radii(head, x, [100.0], "mixed", attacked=chosen)
    assert (found.isfinite() <= chosen).all()
    assert found.isfinite().any()
    assert chosen.sum() == 2  # left as it was


def test_what_has_no_radius_and_what_has_every():
    head = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    logits = torch.tensor([[3.0, 1.0, 0.0], [2.0, 2.0, 0.0], [3.0, 0.0, 3.0]], dtype=torch.float64)
    radii = certified_radii(logits, head, 2.0, 2)
    assert radii[0] == pytest.approx(2 / math.sqrt(2) / 2, rel=1e-8)  # rows 0 and 2 are equal and never swap
    assert radii[1] == radii[2] == 0  # ties
    assert certified_radii(logits, head, math.inf, 2).tolist() == [0, 0, 0]
    assert certified_radii(logits, head, 0.0, 2).tolist() == [math.inf, 0, 0]
    only_equal = certified_radii(logits[:1, [0, 2]], head[[0, 2]], 2.0, 2)
    assert only_equal == math.inf


def test_margins_of_the_size_of_rounding_are_not_certified():
    head = torch.eye(2, dtype=torch.float64)
    logits = torch.tensor([1.0, 1.0 - 1e-12], dtype=torch.float64)
    assert certified_radii(logits, head, 1.0, 2) == 0
    with pytest.raises(TypeError, match="float64"):
        certified_radii(logits.float(), head, 1.0, 2)


def test_nearly_equal_rows_are_told_apart():
    """|a|^2 + |b|^2 - 2ab would round their distance to zero and certify any movement."""
    head = torch.full((40, 3), 1e3, dtype=torch.float64)
    head[1, 0] += 1e-7
    logits = torch.linspace(1, 0, 40, dtype=torch.float64)
    assert certified_radii(logits, head, 1.0, 2).item() == pytest.approx((1 / 39) / 1e-7, rel=1e-3)
