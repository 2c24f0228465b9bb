"""Dropout and the Lipschitz constant."""

import math

import pytest
import torch

from lipformer.modules.attention import (
    ContractiveL2Attention,
    DotProductAttention,
    L2Attention,
    TiedL2Attention,
)
from lipformer.modules.dropout import ContractiveDropout, Dropout


def test_contractive_dropout_masks_without_rescaling():
    torch.manual_seed(0)
    layer, x = ContractiveDropout(0.3), torch.randn(100_000)
    y = layer(x)
    assert set((y / x).unique().tolist()) == {0.0, 1.0}
    assert (y != 0).float().mean().item() == pytest.approx(0.7, abs=0.01)
    assert layer.lipschitz_constant() == 1
    layer.eval()
    torch.testing.assert_close(layer(x), 0.7 * x)
    assert layer.lipschitz_constant() == 0.7


def test_inverted_dropout_is_not_contractive_in_train_mode():
    torch.manual_seed(0)
    layer, x = Dropout(0.25), torch.randn(1000)
    gain = (layer(x) / x).max().item()
    assert gain == pytest.approx(1 / 0.75)
    assert layer.lipschitz_constant() == pytest.approx(gain)
    layer.eval()
    assert torch.equal(layer(x), x)
    assert layer.lipschitz_constant() == 1


@pytest.mark.parametrize("kind", [Dropout, ContractiveDropout])
@pytest.mark.parametrize("p", [-0.1, 1.0])
def test_probability_is_checked(kind, p):
    with pytest.raises(ValueError, match=r"dropout=.*: it must be at least 0 and below 1"):
        kind(p)


def test_bounds_count_the_dropout_of_train_mode():
    torch.manual_seed(0)
    tied = TiedL2Attention(8, 2, context=6, dropout=0.2)
    train, evaluate = tied.lipschitz_bound(2), tied.eval().lipschitz_bound(2)
    torch.testing.assert_close(train, evaluate / 0.8)
    for p in ("mixed", 2, math.inf):
        contractive = ContractiveL2Attention(8, 2, context=6, dropout=0.2, p=p)
        train, evaluate = contractive.lipschitz_bound(p), contractive.eval().lipschitz_bound(p)
        assert train <= contractive.scale
        torch.testing.assert_close(evaluate, 0.8 * train)


@pytest.mark.parametrize("kind", [L2Attention, TiedL2Attention, ContractiveL2Attention])
def test_l2_kinds_drop_outputs_only(kind):
    """Each output entry is zero or its value without dropout, rescaled: no attention weight was dropped."""
    torch.manual_seed(0)
    layer, x = kind(16, 2, context=6, dropout=0.5).double(), torch.randn(4, 6, 16, dtype=torch.float64)
    whole = layer.eval()(x)
    whole = whole * 2  # undo the keep probability of eval mode, or apply the rescaling of train mode
    for fused in (True, False):
        dropped = layer.train()(x, fused=fused)
        kept = dropped != 0
        assert 0.3 < kept.double().mean() < 0.7
        torch.testing.assert_close(dropped[kept], whole[kept])


def test_dot_product_drops_weights_too():
    torch.manual_seed(0)
    layer, x = DotProductAttention(16, 2, context=6, dropout=0.5).double(), torch.randn(4, 6, 16, dtype=torch.float64)
    whole = 2 * layer.eval()(x)
    for fused in (True, False):
        dropped = layer.train()(x, fused=fused)
        kept = dropped != 0
        assert not torch.allclose(dropped[kept], whole[kept])
