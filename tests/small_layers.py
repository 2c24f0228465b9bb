"""Small attention layers with random weights, and tokens for them."""

import torch

F64 = torch.float64


def tokens(*shape, scale=1.0, seed=0, dtype=F64):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def layer_of(kind, width=6, heads=2, context=5, causal=True, **keywords):
    torch.manual_seed(0)
    return kind(width, heads, context=context, causal=causal, **keywords).double().eval()
