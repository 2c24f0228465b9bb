"""Attacks on factored attention, which contracts: at random, and by ascent over inputs and weights."""

import torch
from jacobians import jacobian, norm_mixed
from laws import PLAIN
from test_laws import TOKENS, WIDTH, random_tokens, randomise

from lipformer.modules.attention import (
    ContractiveL2BlocksAttention,
)

ROUNDED = 1 + 1e-5
"""Heads are orthogonal as float32 has it, in which they are drawn; what is left of their products adds up."""


def build(kind=ContractiveL2BlocksAttention, width=WIDTH, heads=2, context=TOKENS, **keywords):
    """A plain layer unless said otherwise: of temperature 1, without a penalty on distance."""
    torch.manual_seed(0)
    return kind(width, heads, context=context, **{**PLAIN, **keywords}).double().eval()


def head_basis(layer):
    return layer.factors()[0].double().transpose(0, 1).flatten(1)


def norm_block(layer, jac):
    """Operator norm for max over tokens and heads of |x_i U_h|: the mixed one, of tokens x heads in their basis."""
    basis = head_basis(layer)
    turned = torch.einsum("ap,...iajb,qb->...ipjq", basis, jac, torch.linalg.inv(basis))
    tokens, width = jac.shape[-2:]
    parts = (tokens * layer.heads, width // layer.heads)
    return norm_mixed(turned.reshape(*jac.shape[:-4], *parts, *parts))


def contraction_norm(layer, jac):
    return norm_block(layer, jac) if isinstance(layer, ContractiveL2BlocksAttention) else norm_mixed(jac)


def attack_at_random(kind, options, weights, inputs):
    generator = torch.Generator().manual_seed(1)
    for case in range(weights):
        causal = options["locality"] is not None or case % 2 == 0
        layer = build(kind, **options, causal=causal)
        randomise(layer, generator)
        reached = contraction_norm(layer, jacobian(layer, random_tokens(generator, inputs)).detach()).max()
        assert reached <= layer.contraction_bound() * (1 + 1e-9)
        assert layer.contraction_bound() <= layer.scale * ROUNDED


def attack_by_ascent(kind, options, attempts, steps):
    """Over inputs and weights; returns the largest share of the bound that was reached."""
    generator, share = torch.Generator().manual_seed(2), 0.0
    for causal in (True, False) if options["locality"] is None else (True,):
        layer = build(kind, **options, causal=causal)
        x = random_tokens(generator, attempts).requires_grad_()
        optimizer = torch.optim.Adam([x, *layer.parameters()], lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            ratios = contraction_norm(layer, jacobian(layer, x)) / layer.contraction_bound()
            assert ratios.max() <= 1 + 1e-9
            share = max(share, ratios.max().item())
            ratios.clamp_min(1e-300).log().sum().neg().backward()
            optimizer.step()
        assert layer.contraction_bound() <= layer.scale * ROUNDED
    return share
