"""What once had a certificate too small, or a promise not kept, and inputs chosen to bring that back."""

import math

import pytest
import torch
from torch import nn

from lipformer import theorems
from lipformer.bounds.certificate import certify
from lipformer.bounds.radii import certified_radii
from lipformer.models.transformer import CharTransformer
from lipformer.modules.attention import (
    ContractiveL2Attention,
    ContractiveL2BlocksAttention,
    ContractiveL2DecoupledAttention,
    SigmoidAttention,
)
from lipformer.modules.embedding import TokenEmbedding
from lipformer.modules.feedforward import ContractiveFeedForward
from lipformer.modules.fixed_point import Solution
from lipformer.modules.linear import dense
from lipformer.modules.normalisations import ActNorm
from lipformer.modules.position import SinusoidalPosition
from lipformer.modules.residual import InvertibleResidual

F64 = torch.float64
NORMS = (2, math.inf, "mixed")


class Scale(nn.Linear):
    """A multiple of the identity."""

    def __init__(self, factor: float):
        super().__init__(2, 2, bias=False)
        nn.init.eye_(self.weight)
        self.weight.data *= factor


class Skip(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


class Parallel(nn.Module):
    """Has the parts of a block, but not one after the other."""

    def __init__(self):
        super().__init__()
        self.attention, self.feedforward = Scale(0.5), Scale(0.5)

    def forward(self, x):
        return x + self.attention(x) + self.feedforward(x)

    def lipschitz_bound(self, p=2, length=None):
        return 1 + theorems.linear_bound(self.attention.weight, p) + theorems.linear_bound(self.feedforward.weight, p)


class Trunk(nn.Module):
    context = 3

    def __init__(self, blocks: nn.Module):
        super().__init__()
        self.blocks, self.final_norm, self.unembedding = blocks, nn.Identity(), Scale(1.0)


def test_a_layer_that_is_applied_twice_counts_twice():
    layer = Scale(3.0)
    certificate = certify(Trunk(nn.Sequential(layer, layer)), 2)
    assert [row.name for row in certificate.rows] == ["blocks.0", "blocks.1", "final_norm", "unembedding"]
    assert 9 <= certificate.trunk < 9 * (1 + 1e-9)


def test_only_what_is_a_chain_is_taken_apart():
    assert certify(Trunk(Skip(Scale(3.0))), 2).trunk == math.inf  # 4, and nothing states it
    certificate = certify(Trunk(nn.Sequential(Parallel())), 2)
    assert 2 <= certificate.trunk < 2 * (1 + 1e-9)
    assert [row.kind for row in certificate.rows] == ["Parallel", "Identity", "Scale"]


@pytest.mark.parametrize(("query", "value", "out"), [(1e-23, 1e24, 1e24), (3e-22, 1e22, 1e22), (1e15, 1e10, 1.0)])
@pytest.mark.parametrize("p", NORMS)
def test_the_divisor_neither_vanishes_nor_overflows_on_the_way(p, query, value, out):
    """In float32 the square of the query's norm does, while the layer's constant is of ordinary size."""
    torch.manual_seed(0)
    layer = ContractiveL2Attention(4, 2, context=5, p=p)
    with torch.no_grad():
        for linear, size in ((layer.query, query), (layer.value, value), (layer.out, out)):
            linear.weight.mul_(size)
    assert layer(torch.randn(1, 5, 4)).isfinite().all()
    assert layer.contraction_bound() <= layer.scale


@pytest.mark.parametrize(("width", "heads"), [(3, 1), (65, 5), (64, 4)])
@pytest.mark.parametrize("size", [1e5, 1e9, 1e30])
def test_orthogonal_heads_withstand_huge_weights(width, heads, size):
    """In an odd width, or of rank two, A is singular, and I - A would be so to rounding."""
    torch.manual_seed(0)
    layer = ContractiveL2BlocksAttention(width, heads, context=5)
    for huge in (torch.randn(width, width), torch.randn(width, 1) * torch.randn(1, width), torch.ones(width, width)):
        with torch.no_grad():
            layer.query.parametrizations.weight.original.copy_(huge * size + torch.randn(width, width))
        assert layer.contraction_bound() <= layer.scale * 1.001 < 1


def test_radii_where_squares_of_weights_vanish():
    head, x = torch.eye(2, dtype=F64), torch.tensor([[1.0, 0.5]], dtype=F64)
    expected = certified_radii(x @ head.mT, head, 1.0, 2)
    tiny = head * 1e-170
    torch.testing.assert_close(certified_radii(x @ tiny.mT, tiny, 1.0, 2), expected)
    zero = torch.zeros_like(head)
    assert certified_radii(x @ zero.mT, zero, 1.0, 2) == 0


def test_a_norm_may_be_spelled_out():
    """A misread "inf" gave the constants of another norm, and radii too large."""
    torch.manual_seed(0)
    logits, head = torch.randn(3, 5, dtype=F64), torch.randn(5, 4, dtype=F64)
    torch.testing.assert_close(certified_radii(logits, head, 1.0, "inf"), certified_radii(logits, head, 1.0, math.inf))
    query, key, value = torch.randn(3, 2, 4, 2, dtype=F64)
    out, factors = torch.randn(4, 4, dtype=F64), torch.ones(2, dtype=F64)
    for p in (2, math.inf):
        tied = [theorems.tied_l2_bound(query, value[:, :2], out, 6, q) for q in (p, str(p))]
        options = {"temperature": factors, "gain": factors, "eps": 0.1, "length": 6}
        cosine = [theorems.cosine_bound(query, key, value, out, **options, p=q) for q in (p, str(p))]
        assert tied[0] == tied[1]
        assert cosine[0] == cosine[1]
    with pytest.raises(ValueError, match="p must be"):
        theorems.tied_l2_bound(query, value[:, :2], out, 6, 1)


def test_no_sequence_is_shorter_than_a_token():
    slope = torch.tensor([0.5])
    for length in (0, -3):
        with pytest.raises(ValueError, match="length"):
            theorems.head_constant(length, slope)


def test_a_bonus_on_distance_is_no_penalty():
    """The mass of a negative slope is that of its sum, not N - 1."""
    slope = torch.tensor([-0.5, -1e-13], dtype=F64)
    summed = torch.stack([(-slope * k).exp() for k in range(1, 6)]).sum(0)
    torch.testing.assert_close(theorems.local_mass(slope, 6), summed)


def test_volume_in_train_mode_is_that_of_the_norms_as_the_first_batch_sets_them():
    torch.manual_seed(0)
    model = CharTransformer(
        5,
        width=4,
        heads=2,
        depth=2,
        context=5,
        attention=ContractiveL2DecoupledAttention,
        norm=ActNorm,
        residual=InvertibleResidual,
        feedforward=ContractiveFeedForward,
        position=SinusoidalPosition,
        embedding=TokenEmbedding,
        linear=dense,
    ).double()
    x = 3 * torch.randn(2, 5, 4, dtype=F64)
    first = model.train().log_det(x)
    torch.testing.assert_close(first, model.eval().log_det(x))
    assert model.blocks[1].feedforward.norm.initialised


def test_an_inverse_before_the_first_batch_is_refused():
    norm = ActNorm(4)
    x = torch.randn(2, 3, 4)
    for call in (norm.invert, norm.log_det):
        with pytest.raises(RuntimeError, match="ActNorm is not set yet"):
            call(x)
    assert not norm.initialised
    torch.testing.assert_close(norm.eval().invert(x), x)


def test_a_solution_through_several_layers_has_no_error_bound():
    solution = Solution(torch.zeros(1, 2, 3), 5, torch.zeros(1), True, layers=2)
    with pytest.raises(ValueError, match="undid 2 layers"):
        solution.error_bound(0.5, "mixed")


@pytest.mark.parametrize("radius", [-1.0, float("nan")])
def test_a_ball_has_a_radius(radius):
    layer = SigmoidAttention(4, 2, context=5)
    with pytest.raises(ValueError, match="radius must not be negative"):
        layer.lipschitz_bound_on_ball(radius, 2)
