"""Small models in float64, and the ids that telemetry is tested with."""

import torch

from lipformer.models.transformer import CharTransformer
from lipformer.modules.attention import ContractiveL2DecoupledAttention, TiedL2Attention
from lipformer.modules.embedding import TokenEmbedding
from lipformer.modules.feedforward import ContractiveFeedForward, FeedForward
from lipformer.modules.linear import dense
from lipformer.modules.normalisations import ActNorm, LayerNorm
from lipformer.modules.position import SinusoidalPosition
from lipformer.modules.residual import InvertibleResidual, PostNorm

WIDTH, HEADS, CONTEXT, SYMBOLS = 8, 2, 16, 11


def build(attention=TiedL2Attention, norm=LayerNorm, residual=PostNorm, feedforward=FeedForward, depth=2, linear=dense):
    torch.manual_seed(0)
    model = CharTransformer(
        SYMBOLS,
        width=WIDTH,
        heads=HEADS,
        depth=depth,
        context=CONTEXT,
        attention=attention,
        norm=norm,
        residual=residual,
        feedforward=feedforward,
        position=SinusoidalPosition,
        embedding=TokenEmbedding,
        linear=linear,
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # biases that are not zero, scales that differ
    return model


def invertible():
    model = build(ContractiveL2DecoupledAttention, ActNorm, InvertibleResidual, ContractiveFeedForward)
    model.train()
    model(ids())  # sets the norms
    return model


def ids(batch=3, tokens=9):
    return torch.randint(0, SYMBOLS, (batch, tokens), generator=torch.Generator().manual_seed(1))
