"""Sigmoid, QK-norm and cosine attention: the formulas word by word, and what their normalisation promises."""

import math

import pytest
import torch
from torch import nn

from lipformer.modules.attention import CosineAttention, QKNormAttention, SigmoidAttention

TOKENS, WIDTH, HEADS = 5, 6, 2
D = WIDTH // HEADS


def projected(layer, x):
    """Queries, keys and values of each head, by slices of the weights."""
    for h in range(HEADS):
        rows = slice(h * D, (h + 1) * D)
        yield tuple(x @ linear.weight[rows].T for linear in (layer.query, layer.key, layer.value))


def draw(kind, **options):
    torch.manual_seed(0)
    layer = kind(WIDTH, HEADS, context=TOKENS, **options).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter))
    return layer, torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)


def future():
    return torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)


def test_sigmoid_is_the_formula():
    layer, x = draw(SigmoidAttention)
    heads = []
    for query, key, value in projected(layer, x):
        weights = 1 / (1 + TOKENS * torch.exp(-query @ key.mT / math.sqrt(D)))  # b = -log N
        heads.append(weights.masked_fill(future(), 0) @ value)
    torch.testing.assert_close(layer(x), torch.cat(heads, -1) @ layer.out.weight.T)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("centred", [True, False])
def test_qk_norm_is_the_formula(fused, centred):
    layer, x = draw(QKNormAttention, centred=centred, eps=1e-2)
    norm = nn.functional.layer_norm if centred else nn.functional.rms_norm
    heads = []
    for query, key, value in projected(layer, x):
        query = norm(query, (D,), eps=1e-2) * layer.query_gain
        key = norm(key, (D,), eps=1e-2) * layer.key_gain
        scores = (query @ key.mT / math.sqrt(D)).masked_fill(future(), -math.inf)
        heads.append(scores.softmax(-1) @ value)
    torch.testing.assert_close(layer(x, fused=fused), torch.cat(heads, -1) @ layer.out.weight.T)


@pytest.mark.parametrize("fused", [True, False])
def test_cosine_is_the_formula(fused):
    layer, x = draw(CosineAttention, eps=0.5)
    heads = []
    for h, tokens in enumerate(projected(layer, x)):
        query, key, value = (t / (t.square().sum(-1, keepdim=True) + 0.5).sqrt() for t in tokens)
        temperature, gain = (raw[h].exp().log1p() for raw in (layer.raw_temperature, layer.raw_gain))
        scores = (temperature * query @ key.mT).masked_fill(future(), -math.inf)
        heads.append(gain * scores.softmax(-1) @ value)
    torch.testing.assert_close(layer(x, fused=fused), torch.cat(heads, -1) @ layer.out.weight.T)


def test_sigmoid_bias_is_a_constant_of_the_layer():
    """Rows of small scores sum to about one at the full length; a batch that is shorter has the same weights."""
    torch.manual_seed(0)
    layer = SigmoidAttention(WIDTH, HEADS, context=50, causal=False).double()
    x = 1e-4 * torch.randn(1, 50, WIDTH, dtype=torch.float64)
    assert layer.attention_weights(x).sum(-1).sub(1).abs().max() < 0.03
    torch.testing.assert_close(layer.attention_weights(x[:, :7]), layer.attention_weights(x)[..., :7, :7])
    assert SigmoidAttention(WIDTH, HEADS, context=50, bias=0.0).bias == 0


def test_initial_factors_are_as_asked():
    layer = CosineAttention(WIDTH, HEADS, context=TOKENS, temperature=3.0, gain=0.2).double()
    torch.testing.assert_close(nn.functional.softplus(layer.raw_temperature), torch.full((2,), 3.0).double())
    torch.testing.assert_close(nn.functional.softplus(layer.raw_gain), torch.full((2,), 0.2).double())


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_and_values_stay_bounded_at_any_scale(scale, dtype):
    torch.manual_seed(0)
    x = (scale * torch.randn(2, TOKENS, WIDTH)).to(dtype)
    layer = QKNormAttention(WIDTH, HEADS, context=TOKENS, causal=False).to(dtype)
    rows = layer.attention_weights(x)
    assert (rows.amax(-1) / rows.amin(-1)).max() <= math.exp(2 * math.sqrt(D)) * (1 + 1e-5)
    cosine = CosineAttention(WIDTH, HEADS, context=TOKENS, gain=2.0).to(dtype)
    nn.init.eye_(cosine.out.weight)
    heads = cosine(x).unflatten(-1, (HEADS, D))
    assert heads.norm(dim=-1).max() <= 2 * (1 + 1e-5)


@pytest.mark.parametrize("kind", [SigmoidAttention, QKNormAttention, CosineAttention])
def test_half_precision_under_autocast(kind):
    torch.manual_seed(0)
    layer, x = kind(64, 4, context=40), torch.randn(2, 40, 64)
    exact = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    assert (y.float() - exact).norm() < 3e-2 * exact.norm()


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        (QKNormAttention, {"eps": 0.0}),
        (CosineAttention, {"eps": 0.0}),
        (CosineAttention, {"temperature": 0.0}),
        (CosineAttention, {"gain": -1.0}),
    ],
)
def test_options_are_checked(kind, bad):
    with pytest.raises(ValueError, match=f"{next(iter(bad))}=.*: it must be above 0"):
        kind(4, 2, context=3, **bad)


@pytest.mark.parametrize("kind", [SigmoidAttention, QKNormAttention, CosineAttention])
@pytest.mark.parametrize("p", [2, math.inf, "mixed"])
def test_weights_that_are_not_finite_have_no_certificate(kind, p):
    for name in ("query", "key", "value", "out"):
        layer = kind(4, 2, context=3)
        getattr(layer, name).weight.data[0, 1] = math.nan
        bound = layer.lipschitz_bound(p) if kind is CosineAttention else layer.lipschitz_bound_on_ball(1.0, p)
        assert bound == math.inf


@pytest.mark.parametrize("kind", [SigmoidAttention, QKNormAttention, CosineAttention])
def test_bounds_count_the_dropout_of_train_mode(kind):
    layer = kind(4, 2, context=3, dropout=0.2)
    bound = layer.lipschitz_bound if kind is CosineAttention else lambda: layer.lipschitz_bound_on_ball(1.0)
    train, evaluate = bound(), (layer.eval(), bound())[1]
    torch.testing.assert_close(train, evaluate / 0.8)
