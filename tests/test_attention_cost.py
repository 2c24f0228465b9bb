"""What the fused form saves, counted in floating-point operations and not in seconds."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lipformer.modules.attention import ContractiveL2Attention, DotProductAttention, TiedL2Attention

BATCH, TOKENS, WIDTH, HEADS = 8, 288, 512, 8
PROJECTION = 2 * BATCH * TOKENS * WIDTH**2


def count(layer, fused=True):
    """Operations of one training step: (products with tokens, products of weights, attention)."""
    x = torch.randn(BATCH, TOKENS, WIDTH, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        layer(x, fused=fused).sum().backward()
    counts = {str(op): flops for op, flops in counter.get_flop_counts()["Global"].items()}
    tokens = sum(flops for op, flops in counts.items() if op in ("aten.mm", "aten.addmm"))
    weights = sum(flops for op, flops in counts.items() if op in ("aten.bmm", "aten.baddbmm"))
    return tokens, weights, sum(counts.values()) - tokens - weights


@pytest.fixture(scope="module")
def dot_product():
    return count(DotProductAttention(WIDTH, HEADS, context=TOKENS))


def test_dot_product_has_four_projections(dot_product):
    tokens, _, _ = dot_product
    assert tokens == 3 * 4 * PROJECTION  # forward, and backward to inputs and weights


def test_tied_l2_has_two_projections(dot_product):
    """Half of dot_product's, and the extra column of each head."""
    tokens, weights, attention = count(TiedL2Attention(WIDTH, HEADS, context=TOKENS))
    extra = 1 + 1 / (WIDTH // HEADS)
    assert 0.5 <= tokens / dot_product[0] <= 0.5 * extra * 1.01
    assert weights < 0.05 * dot_product[0]
    assert attention == pytest.approx(extra * dot_product[2], rel=0.01)


def test_contractive_l2_adds_products_of_weights_only():
    """Norms of weights: no product with tokens more than tied_l2."""
    tied, contractive = (
        count(kind(WIDTH, HEADS, context=TOKENS)) for kind in (TiedL2Attention, ContractiveL2Attention)
    )
    longer = 2 * BATCH * TOKENS
    assert contractive[2] == tied[2]
    # six products for the norm of W^O, forward and (two each) backward, and the smaller ones
    assert contractive[0] - tied[0] <= 1.1 * 3 * 6 * 2 * WIDTH**3
    assert contractive[1] < 3 * tied[1]
    assert longer > 0


def test_fused_form_holds_no_square_of_the_length():
    """Saved for the backward pass: multiples of N, where the explicit form keeps N x N matrices."""

    def saved(fused):
        sizes = []
        layer, x = TiedL2Attention(WIDTH, HEADS, context=TOKENS), torch.randn(1, TOKENS, WIDTH)

        def pack(tensor):
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            layer(x, fused=fused)
        return max(sizes)

    assert saved(fused=False) >= HEADS * TOKENS**2
    assert saved(fused=True) < 2 * max(TOKENS * WIDTH, WIDTH**2)
