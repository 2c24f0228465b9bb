"""The embedding and its blank channels."""

import pytest
import torch

from lipformer.modules.embedding import TokenEmbedding


@pytest.mark.parametrize(("filled", "channels"), [(1.0, 16), (0.5, 8), (0.05, 1), (0.99, 16)])
def test_it_fills_a_share_of_the_channels(filled, channels):
    embedding = TokenEmbedding(11, 16, filled=filled)
    assert embedding.embedding_dim == channels
    assert embedding(torch.zeros(2, 3, dtype=torch.long)).shape == (2, 3, channels)


@pytest.mark.parametrize("filled", [0.0, -0.5, 1.1, float("nan")])
def test_shares_out_of_range_are_refused(filled):
    with pytest.raises(ValueError, match=r"filled=.*: it must be above 0 and at most 1"):
        TokenEmbedding(11, 16, filled=filled)


def test_a_share_that_is_no_channel_is_refused():
    with pytest.raises(ValueError, match=r"filled=0.01 of 16 channels is none"):
        TokenEmbedding(11, 16, filled=0.01)
