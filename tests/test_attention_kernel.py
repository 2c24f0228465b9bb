"""Kernel attention: its linear form in chunks, dead rows, and what it keeps."""

import pytest
import torch

from lipformer.functional.kernel import elu_features, kernel_attention, kernel_weights
from lipformer.modules.attention import KernelAttention

FEATURES = ["elu", "relu"]


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("causal", [True, False])
def test_chunks_make_no_difference(tokens, causal):
    torch.manual_seed(0)
    query, key = torch.rand(2, 2, tokens, 3, dtype=torch.float64)
    value = torch.randn(2, tokens, 5, dtype=torch.float64)
    expected = kernel_weights(query, key, eps=1e-3, causal=causal) @ value
    for chunk in (1, 2, 3, 64):
        found = kernel_attention(query, key, value, eps=1e-3, causal=causal, chunk=chunk)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_long_sequences_in_every_precision(features, dtype):
    torch.manual_seed(0)
    layer = KernelAttention(32, 4, context=300, features=features)
    x = torch.randn(2, 300, 32)
    exact = layer.double()(x.double(), fused=False)
    layer, x = layer.to(dtype), x.to(dtype)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    for fused in (True, False):
        y = layer(x, fused=fused)
        assert y.dtype == dtype
        assert (y.double() - exact).norm() < tolerance * exact.norm()


def test_a_later_token_of_the_same_chunk_is_not_even_rounded_into_an_earlier_one():
    torch.manual_seed(0)
    layer = KernelAttention(4, 2, context=200).double()
    x = torch.randn(1, 200, 4, dtype=torch.float64)
    changed = x.clone()
    changed[:, 130:] *= 1e8
    torch.testing.assert_close(layer(changed)[:, :130], layer(x)[:, :130], rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_dead_query_gets_zero_and_a_finite_gradient(fused, dtype):
    torch.manual_seed(0)
    layer = KernelAttention(4, 2, context=5, features="relu").to(dtype)
    with torch.no_grad():
        layer.query.weight.copy_(torch.eye(4))
    x = torch.randn(1, 5, 4, dtype=dtype)
    x[:, 2] = -1
    x.requires_grad_()
    y = layer(x, fused=fused)
    assert (y[:, 2] == 0).all()
    assert (y[:, 3] != 0).any()
    assert (layer.attention_weights(x)[:, :, 2] == 0).all()
    gradients = torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)
    zeros = torch.zeros(1, 5, 4, dtype=dtype, requires_grad=True)
    assert (layer(zeros, fused=fused) == 0).all()
    assert torch.autograd.grad(layer(zeros, fused=fused).sum(), zeros)[0].isfinite().all()


@pytest.mark.parametrize("features", FEATURES)
def test_rows_sum_to_less_than_one_by_the_share_of_eps(features):
    torch.manual_seed(0)
    layer = KernelAttention(8, 2, context=6, features=features, eps=0.5).double()
    x = torch.randn(3, 6, 8, dtype=torch.float64)
    rows = layer.attention_weights(x)
    assert (rows >= 0).all()
    assert (rows.triu(1) == 0).all()
    sums = rows.sum(-1)
    assert (sums < 1).all()
    layer.eps = 0.25
    smaller = layer.attention_weights(x).sum(-1)
    # sum = s / (s + eps), so eps = s (1 / sum - 1)
    alive = sums > 0
    torch.testing.assert_close((1 / sums - 1)[alive], 2 * (1 / smaller - 1)[alive])


def test_relu_weights_are_blind_to_the_scale_of_the_tokens():
    torch.manual_seed(0)
    layer = KernelAttention(8, 2, context=6, features="relu", eps=1e-300).double()
    x = torch.randn(3, 6, 8, dtype=torch.float64)
    torch.testing.assert_close(layer.attention_weights(100 * x), layer.attention_weights(x))


def test_elu_features_are_positive_with_slope_at_most_one():
    x = torch.linspace(-80, 20, 2001, dtype=torch.float32).requires_grad_()
    y = elu_features(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert (y > 0).all()
    assert (slope > 0).all()
    assert (slope <= 1).all()
    torch.testing.assert_close(y[x > -5], (torch.nn.functional.elu(x) + 1)[x > -5])


def test_memory_is_linear_in_the_tokens():
    """The largest tensor saved for the backward pass: no N x N matrix, no d x d matrix for each token."""
    width, heads = 64, 1

    def saved(tokens, fused):
        layer, x, sizes = KernelAttention(width, heads, context=tokens), torch.randn(1, tokens, width), []

        def pack(tensor):
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            layer(x, fused=fused)
        return max(sizes)

    assert saved(1024, fused=False) >= 1024**2
    assert saved(1024, fused=True) <= 2 * 1024 * width
    assert saved(2048, fused=True) <= 2.1 * saved(1024, fused=True)


@pytest.mark.parametrize("bad", [{"features": "gelu"}, {"eps": 0.0}])
def test_options_are_checked(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        KernelAttention(4, 2, context=3, **bad)
