"""How branch, skip connection and norm meet: values, constants, bijections."""

import functools
import math

import pytest
import torch
from jacobians import NORMS, jacobian

from lipformer.modules.attention import (
    ContractiveL2Attention,
    ContractiveL2BlocksAttention,
    ContractiveL2DecoupledAttention,
    DotProductAttention,
    TiedL2Attention,
)
from lipformer.modules.feedforward import ContractiveFeedForward, FeedForward, NoFeedForward
from lipformer.modules.normalisations import ActNorm, CenterNorm, LayerNorm, NoNorm, RMSNorm
from lipformer.modules.residual import ConvexResidual, InvertibleResidual, PostNorm, PreNorm, WeightedResidual

F64 = torch.float64


class Turn(torch.nn.Module):
    """A linear map of a known constant."""

    def __init__(self, matrix):
        super().__init__()
        self.matrix = torch.nn.Parameter(matrix)

    def forward(self, x):
        return x @ self.matrix

    def lipschitz_bound(self, p=2, length=None):
        return torch.linalg.matrix_norm(self.matrix.mT, math.inf if p == math.inf else 2)


def branch(factor=3.0):
    return Turn(factor * torch.eye(4, dtype=F64))


@pytest.mark.parametrize("p", [2, math.inf, "mixed"])
@pytest.mark.parametrize(
    ("kind", "keywords", "gain"),
    [
        (PostNorm, {}, 4),
        (PreNorm, {}, 4),
        (WeightedResidual, {"layers": 6}, 1.5),
        (ConvexResidual, {"layers": 5}, 0.9 + 0.1 * 3),
    ],
)
def test_a_multiple_of_the_identity_attains_the_constant(kind, keywords, gain, p):
    block = kind(branch(), NoNorm, 4, **keywords).double()
    x = torch.randn(2, 3, 4, dtype=F64)
    torch.testing.assert_close(block(x), gain * x)
    torch.testing.assert_close(NORMS[p](jacobian(block, x))[0], block.lipschitz_bound(p))


@pytest.mark.parametrize("p", [2, math.inf, "mixed"])
def test_the_norm_counts(p):
    norm = functools.partial(CenterNorm)
    for kind, keywords in ((PostNorm, {}), (WeightedResidual, {"layers": 1}), (ConvexResidual, {"layers": 1})):
        block = kind(branch(), norm, 4, **keywords).double()
        plain = kind(branch(), NoNorm, 4, **keywords).double()
        expected = plain.lipschitz_bound(p) * block.norm.lipschitz_bound(p)
        torch.testing.assert_close(block.lipschitz_bound(p), expected)
    block = PreNorm(branch(), norm, 4).double()
    torch.testing.assert_close(block.lipschitz_bound(p), 1 + 3 * block.norm.lipschitz_bound(p))


def test_learned_weights_count():
    weighted = WeightedResidual(branch(), NoNorm, 4, layers=2).double()
    with torch.no_grad():
        weighted.alpha.copy_(torch.tensor([0.1, -5.0, 0.2, 0.0]))
    assert weighted.lipschitz_bound().item() == pytest.approx(16)
    convex = ConvexResidual(branch(), NoNorm, 4, layers=2).double()
    for logit, expected in ((0.0, 2.0), (-800.0, 1.0), (800.0, 3.0), (math.nan, math.inf)):
        with torch.no_grad():
            convex.logit.fill_(logit)
        assert convex.lipschitz_bound().item() == pytest.approx(expected)


def test_a_convex_trunk_does_not_amplify():
    torch.manual_seed(0)
    trunk = torch.nn.Sequential(
        *(ConvexResidual(ContractiveL2Attention(4, 2, context=5), NoNorm, 4, layers=20) for _ in range(20))
    )
    bounds = [block.lipschitz_bound("mixed").item() for block in trunk]
    assert math.prod(bounds) <= 1
    x = torch.randn(3, 5, 4)
    assert (trunk(x) - trunk(x + 0.1)).norm(dim=-1).max() <= 0.1 * 2 * (1 + 1e-5)


def test_pre_norm_shows_dot_product_attention_a_ball():
    """No constant on all tokens, one on what the norm lets through."""
    torch.manual_seed(0)
    attention = DotProductAttention(4, 2, context=5, fused=False).double()
    block = PreNorm(attention, functools.partial(LayerNorm, eps=0.1), 4).double()
    x = 10 ** (3 * torch.rand(60, 1, 1, dtype=F64) - 2) * torch.randn(60, 5, 4, dtype=F64)
    jac = jacobian(block, x).detach()
    for p, norm in NORMS.items():
        assert attention.lipschitz_bound(p) == math.inf
        assert norm(jac).max() <= block.lipschitz_bound(p) < math.inf
        # Norms without a ball leave it as it is; without the skip the identity is not counted.
        assert PreNorm(attention, NoNorm, 4).lipschitz_bound(p) == math.inf
        assert PreNorm(attention, CenterNorm, 4).lipschitz_bound(p) == math.inf
        assert PostNorm(attention, LayerNorm, 4).lipschitz_bound(p) == math.inf
    with torch.no_grad():
        block.norm.weight.fill_(math.nan)
    assert block.lipschitz_bound() == math.inf


@pytest.mark.parametrize("norm", [ActNorm, NoNorm, functools.partial(ActNorm, max_scale=2.0)])
@pytest.mark.parametrize(
    "make",
    [
        lambda: ContractiveL2Attention(4, 2, context=5),
        lambda: ContractiveL2DecoupledAttention(4, 2, context=5, locality=0.5),
        lambda: ContractiveL2BlocksAttention(4, 2, context=5),
        lambda: ContractiveFeedForward(4),
        lambda: NoFeedForward(4),
    ],
    ids=["contractive_l2", "decoupled", "blocks", "feedforward", "none"],
)
def test_invertible(norm, make):
    torch.manual_seed(0)
    block = InvertibleResidual(make(), norm, 4).double()
    x = 3 * torch.randn(2, 5, 4, dtype=F64)
    block.train()(x)
    block.eval()
    y = block(x)
    solution = block.invert(y.detach())
    assert solution.converged
    torch.testing.assert_close(solution.x, x, rtol=0, atol=1e-11)
    matrix = torch.autograd.functional.jacobian(lambda t: block(t[None])[0], x[1]).reshape(20, 20)
    expected = torch.linalg.slogdet(matrix).logabsdet
    torch.testing.assert_close(block.log_det(x)[1], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("make", "norm", "message"),
    [
        (lambda: DotProductAttention(4, 2, context=5), NoNorm, "contractive branch, which DotProductAttention is not"),
        (lambda: TiedL2Attention(4, 2, context=5), NoNorm, "contractive branch, which TiedL2Attention is not"),
        (lambda: FeedForward(4), NoNorm, "contractive branch, which FeedForward is not"),
        (lambda: NoFeedForward(4), LayerNorm, "invertible normalisation, which LayerNorm is not"),
        (lambda: NoFeedForward(4), RMSNorm, "invertible normalisation, which RMSNorm is not"),
        (lambda: NoFeedForward(4), CenterNorm, "invertible normalisation, which CenterNorm is not"),
    ],
)
def test_what_cannot_be_inverted_is_refused(make, norm, message):
    with pytest.raises(ValueError, match=message):
        InvertibleResidual(make(), norm, 4)


@pytest.mark.parametrize("kind", [WeightedResidual, ConvexResidual])
def test_layers_are_counted_from_one(kind):
    with pytest.raises(ValueError, match="layers=0: it must be at least 1"):
        kind(NoFeedForward(4), NoNorm, 4, layers=0)


@pytest.mark.parametrize(
    ("kind", "keywords"),
    [
        (PostNorm, {}),
        (PreNorm, {}),
        (InvertibleResidual, {}),
        (WeightedResidual, {"layers": 2}),
        (ConvexResidual, {"layers": 2}),
    ],
)
def test_autocast_reaches_every_kind(kind, keywords):
    """Branches then answer in half precision, the skip connection stays in float32."""
    torch.manual_seed(0)
    block = kind(ContractiveL2Attention(8, 2, context=6), NoNorm, 8, **keywords)
    x = torch.randn(2, 6, 8)
    reference = block(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = block(x)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, reference, rtol=0, atol=0.02)
