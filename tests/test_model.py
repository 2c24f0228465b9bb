"""The Transformer around the attention."""

import functools

import pytest
import torch

from lipformer.model import CharTransformer
from lipformer.modules.attention import ContractiveL2Attention, DotProductAttention
from lipformer.modules.embedding import TokenEmbedding
from lipformer.modules.feedforward import FeedForward
from lipformer.modules.linear import dense
from lipformer.modules.norms import LayerNorm, NoNorm, RMSNorm
from lipformer.modules.position import LearnedPosition, SinusoidalPosition, sinusoids
from lipformer.modules.residual import PostNorm, PreNorm

V = 11


def build(**changes):
    options = {
        "width": 16,
        "heads": 2,
        "depth": 2,
        "context": 12,
        "attention": DotProductAttention,
        "norm": LayerNorm,
        "residual": PreNorm,
        "feedforward": functools.partial(FeedForward, activation="relu", expansion=2),
        "position": LearnedPosition,
        "embedding": TokenEmbedding,
        "linear": dense,
    }
    torch.manual_seed(0)
    return CharTransformer(V, **{**options, **changes}).double().eval()


@pytest.mark.parametrize("residual", [PreNorm, PostNorm])
@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm, NoNorm])
def test_logits_depend_on_the_past_alone(residual, norm):
    model = build(residual=residual, norm=norm)
    ids = torch.randint(V, (3, 9))
    other = ids.clone()
    other[:, 5:] = (other[:, 5:] + 1) % V
    one, two = model(ids), model(other)
    assert one.shape == (3, 9, V)
    torch.testing.assert_close(one[:, :5], two[:, :5], rtol=1e-12, atol=1e-12)
    assert (one[:, 5:] - two[:, 5:]).abs().amin(-1).max() > 1e-6


def test_a_sentence_alone_and_padded_in_a_batch_are_the_same():
    model = build()
    ids = torch.randint(V, (4, 12))
    torch.testing.assert_close(model(ids)[1:2, :7], model(ids[1:2, :7]), rtol=1e-12, atol=1e-12)


def test_post_norm_is_the_original_order():
    class Double(torch.nn.Module):
        def forward(self, x):
            return 2 * x

    x = torch.randn(2, 3, 8)
    torch.testing.assert_close(PostNorm(Double(), LayerNorm, 8)(x), torch.nn.functional.layer_norm(3 * x, (8,)))
    torch.testing.assert_close(PreNorm(Double(), LayerNorm, 8)(x), x + 2 * torch.nn.functional.layer_norm(x, (8,)))


def test_pre_norm_alone_has_a_final_norm():
    assert isinstance(build(residual=PreNorm).final_norm, LayerNorm)
    assert isinstance(build(residual=PostNorm).final_norm, torch.nn.Identity)


@pytest.mark.parametrize(
    ("attention", "position", "limit"),
    [
        (DotProductAttention, LearnedPosition, 12),
        (DotProductAttention, SinusoidalPosition, None),
        (ContractiveL2Attention, SinusoidalPosition, 12),
    ],
)
def test_longest_input(attention, position, limit):
    model = build(attention=attention, position=position)
    assert model.longest_input == limit
    ids = torch.randint(V, (1, 13))
    if limit is None:
        assert model(ids).shape == (1, 13, V)
    else:
        with pytest.raises(ValueError, match=r"13 tokens is longer than the .*12"):
            model(ids)


def test_sinusoids_are_those_of_the_paper():
    table = sinusoids(20, 6).double()
    for n in (0, 3, 19):
        for i in range(3):
            angle = torch.tensor(n * 10000 ** (-2 * i / 6), dtype=torch.float64)
            torch.testing.assert_close(table[n, 2 * i], angle.sin(), rtol=0, atol=1e-6)
            torch.testing.assert_close(table[n, 2 * i + 1], angle.cos(), rtol=0, atol=1e-6)
    assert sinusoids(4, 5).shape == (4, 5)


def test_unknown_activation_is_named():
    with pytest.raises(ValueError, match="activation='tanh': it must be one of relu, gelu"):
        FeedForward(4, activation="tanh")
