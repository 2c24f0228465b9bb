"""The fused form equals the explicit one, in every precision, at any distance from the origin."""

import math

import pytest
import torch

from lipformer.functional.attention import masked_softmax
from lipformer.functional.fused import _NormColumns, _padded_projection, _round_up
from lipformer.modules.attention import (
    ContractiveL2Attention,
    DotProductAttention,
    L2Attention,
    TiedL2Attention,
)

KINDS = [
    pytest.param(DotProductAttention, {}, id="dot_product"),
    pytest.param(L2Attention, {}, id="l2"),
    pytest.param(TiedL2Attention, {}, id="tied_l2"),
    pytest.param(TiedL2Attention, {"columns": 2}, id="tied_l2_matched"),
    pytest.param(ContractiveL2Attention, {}, id="contractive_l2"),
]
OFFSET_KINDS = KINDS[1:4]  # contractive_l2 divides by an upper bound that depends on the precision
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}
WIDTH, HEADS = 48, 3


def results(layer, x, fused):
    """Output and all gradients, in float64."""
    leaf = x.clone().requires_grad_()
    layer.zero_grad()
    y = layer(leaf, fused=fused)
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype))
    return [t.double() for t in (y.detach(), leaf.grad, *(weight.grad for weight in layer.parameters()))]


def distance(a, b):
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
@pytest.mark.parametrize("length", [1, 2, 7, 288])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("kind", "keywords"), KINDS)
def test_values_and_gradients(kind, keywords, causal, length, dtype):
    torch.manual_seed(0)
    layer = kind(WIDTH, HEADS, context=288, causal=causal, **keywords).to(dtype)
    x = torch.randn(2, length, WIDTH).to(dtype)
    for fast, reference in zip(results(layer, x, True), results(layer, x, False), strict=True):
        if reference.norm() > 1e-6 * max(1, fast.norm()):  # one token has no distances to differentiate
            assert distance(fast, reference) < TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("kind", "keywords"), KINDS[1:])
def test_padding_of_heads_as_for_cuda(kind, keywords, dtype, monkeypatch):
    torch.manual_seed(0)
    layer, x = kind(WIDTH, HEADS, context=7, **keywords).to(dtype), torch.randn(2, 7, WIDTH).to(dtype)
    narrow = results(layer, x, True)
    monkeypatch.setattr("lipformer.functional.fused._round_up", lambda columns, _: _round_up(columns, "cuda"))
    assert _padded_projection(x, layer.query.weight, HEADS).shape[-1] % 8 == 0
    for wide, reference in zip(results(layer, x, True), narrow, strict=True):
        assert distance(wide, reference) < TOLERANCES[dtype]


@pytest.mark.parametrize("offset", [0.0, 10.0, 100.0, 1000.0])
@pytest.mark.parametrize(("kind", "keywords"), OFFSET_KINDS)
def test_common_offset_in_float32(kind, keywords, offset):
    """A vector common to all tokens, a thousand times their spread: against float64 on the same inputs."""
    torch.manual_seed(0)
    layer = kind(WIDTH, HEADS, context=64, **keywords)
    if kind is L2Attention:  # with keys far from queries an offset is no symmetry; keep its effect on scores small
        layer.key.weight.data.copy_(layer.query.weight + 1e-3 * layer.key.weight)
    x = torch.randn(2, 64, WIDTH) + offset * torch.randn(WIDTH)
    fast, slow = results(layer, x, True), results(layer, x, False)
    exact = results(layer.double(), x.double(), False)
    for name, a, b, reference in zip(["y", "x", *dict(layer.named_parameters())], fast, slow, exact, strict=True):
        # Values carry the offset, and the derivative of the softmax takes differences of them.
        tolerance = 2e-5 if name == "y" else 2e-5 + 3e-6 * offset
        assert distance(a, reference) < tolerance, name
        assert distance(b, reference) < tolerance, name


def fused_rows(layer, x):
    """Attention rows that the kernel computes from its half-precision queries and keys, in float32."""
    queries = _padded_projection(x - x[:, :1], layer.query.weight, layer.heads)
    keys = _NormColumns.apply(queries, None, None, layer.query.weight.shape[0] // layer.heads)
    queries, keys = queries.float().transpose(1, 2), keys.float().transpose(1, 2)
    with torch.autocast("cpu", enabled=False):
        return masked_softmax(2 / layer.s * queries @ keys.mT, causal=layer.causal)


@pytest.mark.parametrize("offset", [0.0, 10.0, 30.0, 100.0, 300.0])
@torch.no_grad()
def test_bfloat16_rows_do_not_feel_an_offset(offset):
    """Queries spread 0.3 about a common vector of norm ``offset``: total variation of the attention rows.

    With a single half-precision norm column it would be 0.06 at 30 and 0.93 at 300.
    """
    torch.manual_seed(0)
    layer = TiedL2Attention(512, 8, context=288)
    layer.query.weight.mul_(0.3 / layer.query(torch.randn(1000, 512)).std())
    direction = torch.randn(512)
    direction = direction / (layer.query(direction).norm() / math.sqrt(8))
    x = torch.randn(1, 288, 512) + offset * direction
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer.query(x).dtype == torch.bfloat16
        fused, explicit = fused_rows(layer, x), layer.attention_weights(x)
        outputs = [layer(x, fused=fused) for fused in (True, False)]
    layer.double()
    exact, output = layer.attention_weights(x.double()), layer(x.double())
    for rows in (fused, explicit):
        variation = 0.5 * (rows.double() - exact).abs().sum(-1)
        assert variation.mean() < 1.5e-3
        assert variation.max() < 5e-3
    for y in outputs:
        assert y.dtype == torch.bfloat16
        assert distance(y.double(), output) < 1e-2


@pytest.mark.parametrize(("offset", "limit"), [(0.0, 1e-5), (10.0, 1e-4), (30.0, 1e-3), (100.0, 5e-3)])
@torch.no_grad()
def test_bfloat16_rows_when_the_first_token_is_elsewhere(offset, limit):
    """Centring does not help here; norms of the rounded keys in two columns do (one: 0.07 at 30, 0.6 at 100)."""
    torch.manual_seed(0)
    layer = TiedL2Attention(512, 8, context=288)
    layer.query.weight.mul_(0.3 / layer.query(torch.randn(1000, 512)).std())
    direction = torch.randn(512)
    direction = direction / (layer.query(direction).norm() / math.sqrt(8))
    x = torch.randn(1, 288, 512)
    x[:, 1:] += offset * direction
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rows = fused_rows(layer, x)
    # The attention of the rounded queries themselves: what is tested is the arithmetic, not their rounding.
    with torch.autocast("cpu", dtype=torch.bfloat16):
        queries = layer.query(x - x[:, :1])
    heads = queries.double().unflatten(-1, (8, 64)).transpose(1, 2)
    exact = masked_softmax(-torch.cdist(heads, heads).square() / layer.s, causal=True)
    assert 0.5 * (rows.double() - exact).abs().sum(-1).mean() < limit


def test_each_token_is_nearest_to_itself_in_bfloat16():
    """Sharp attention, tokens far apart: rounding leaves the largest score of each row its own."""
    torch.manual_seed(0)
    layer = TiedL2Attention(64, 2, context=64, causal=False).bfloat16()
    rows = fused_rows(layer, 30 * torch.randn(1, 64, 64).bfloat16())
    assert (rows.argmax(-1) == torch.arange(64)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_averaging_is_not_spoilt_by_centring(dtype):
    """Flat attention over many tokens about zero: the mean is small, its error must be small beside the mean."""
    torch.manual_seed(0)
    layer = TiedL2Attention(64, 2, context=1024, causal=False)
    layer.query.weight.mul_(0.1)
    x = torch.randn(1, 1024, 64)
    layer, x = layer.to(dtype), x.to(dtype)
    y = layer(x)
    exact = layer.double()(x.double())
    assert distance(y.double(), exact) < {torch.float32: 3e-6, torch.bfloat16: 2e-2}[dtype]


def test_the_layer_is_kims_formula():
    """P X A_h W^V_h, concatenated, times W^O, word by word."""
    torch.manual_seed(0)
    for columns in (1, 2):
        layer = TiedL2Attention(6, 3, context=5, columns=columns).double()
        x = torch.randn(2, 5, 6, dtype=torch.float64)
        d = 2 * columns
        heads = []
        for h in range(3):
            w = layer.query.weight[h * d : (h + 1) * d].T
            v = layer.value.weight[2 * h : 2 * h + 2].T
            scores = -torch.cdist(x @ w, x @ w).square() / math.sqrt(d)
            rows = scores.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -math.inf).softmax(-1)
            torch.testing.assert_close(layer.attention_weights(x)[:, h], rows)
            heads.append(rows @ x @ (w @ w.T / math.sqrt(d)) @ v)
        expected = torch.cat(heads, -1) @ layer.out.weight.T
        for fused in (True, False):
            torch.testing.assert_close(layer(x, fused=fused), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("kind", "keywords"), KINDS)
def test_any_leading_dimensions(kind, keywords, fused, dtype):
    """None, or several: the tokens are the last dimension but one."""
    torch.manual_seed(0)
    layer = kind(WIDTH, HEADS, context=8, **keywords).to(dtype)
    x = torch.randn(2, 8, WIDTH).to(dtype)
    value, gradient, *weights = results(layer, x, fused)
    for shape in ((2, 1, 8, WIDTH), (1, 1, 2, 8, WIDTH)):
        for found, expected in zip(results(layer, x.view(shape), fused), (value, gradient, *weights), strict=True):
            assert distance(found.view_as(expected), expected) < TOLERANCES[dtype]
    assert distance(layer(x[1], fused=fused).double(), value[1]) < TOLERANCES[dtype]


@pytest.mark.parametrize(("kind", "keywords"), KINDS)
def test_constructor_chooses_the_default_path(kind, keywords):
    layer = kind(WIDTH, HEADS, context=8, fused=False, **keywords).double()
    x = torch.randn(1, 8, WIDTH, dtype=torch.float64)
    assert torch.equal(layer(x), layer(x, fused=False))
    torch.func.jvp(layer, (x,), (x,))  # which the fused kernel refuses


@pytest.mark.parametrize(("kind", "keywords"), KINDS)
def test_heads_must_divide_width(kind, keywords):
    with pytest.raises(ValueError, match="width 48 is not divisible by heads 5"):
        kind(48, 5, context=8, **keywords)


@pytest.mark.parametrize(("kind", "keywords"), KINDS)
def test_rows_sum_to_one_and_see_themselves(kind, keywords):
    layer = kind(WIDTH, HEADS, context=8, **keywords)
    rows = layer.attention_weights(torch.randn(2, 8, WIDTH))
    assert rows.shape == (2, HEADS, 8, 8)
    torch.testing.assert_close(rows.sum(-1), torch.ones(2, HEADS, 8))
    assert (rows.diagonal(dim1=-2, dim2=-1) > 0).all()
    assert (rows.triu(1) == 0).all()


def test_tied_kinds_have_no_key():
    names = {name for name, _ in TiedL2Attention(4, 2, context=3).named_parameters()}
    assert names == {"query.weight", "value.weight", "out.weight"}
    count = {
        kind: sum(w.numel() for w in kind(8, 2, context=3).parameters()) for kind in (L2Attention, DotProductAttention)
    }
    matched = sum(w.numel() for w in TiedL2Attention(8, 2, context=3, columns=2).parameters())
    assert matched == count[L2Attention] == count[DotProductAttention]
