"""The character-level Transformer: embed, a stack of blocks, a linear unembedding."""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from lipformer.functional.spectral import Norm
from lipformer.modules import contracts
from lipformer.modules.contracts import Invertible
from lipformer.modules.fixed_point import Solution
from lipformer.modules.linear import one_weight
from lipformer.modules.walk import TRUNK_ROLES, walk
from lipformer.theorems.compose import compose

ModuleFactory = Callable[..., nn.Module]


class TransformerBlock(nn.Module):
    """Attention over the tokens, then a map of each token, each on a skip connection.

    Args:
        attention: the attention branch in its residual.
        feedforward: the token-wise branch in its residual.
    """

    chain = ("attention", "feedforward")

    def __init__(self, attention: nn.Module, feedforward: nn.Module):
        super().__init__()
        self.attention = attention
        self.feedforward = feedforward

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Apply both residuals."""
        return self.feedforward(self.attention(x))

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """Product of the residuals' constants."""
        return compose(*(contracts.lipschitz_bound(part, p, length) for part in (self.attention, self.feedforward)))


class CharTransformer(nn.Module):
    """A causal Transformer over characters.

    Args:
        vocabulary_size: symbols that can be read and predicted, V (the end symbol among them, padding not).
        width: features of a token, D.
        heads: attention heads, H.
        depth: blocks.
        context: longest sequence trained on, N; contractive attention is normalised for this length.
        dropout: probability of dropping a feature of a branch's output.
        attention: called as ``attention(width, heads, context=, causal=True, dropout=)`` once a block.
        norm: called as ``norm(width)``.
        residual: called as ``residual(branch, norm, width)`` twice a block.
        feedforward: called as ``feedforward(width, dropout=)`` once a block.
        position: called as ``position(context, channels)``, with the channels that the embedding fills.
        embedding: called as ``embedding(vocabulary_size, width)``; fills ``embedding_dim`` channels, the first ones.
        linear: called as ``linear(module)`` for each ``nn.Linear`` of the blocks, once they are built, but for those
            whose weight is already computed from another (a contraction may rest on it); may parametrise its weight.
    """

    def __init__(
        self,
        vocabulary_size: int,
        *,
        width: int,
        heads: int,
        depth: int,
        context: int,
        dropout: float = 0.0,
        attention: ModuleFactory,
        norm: ModuleFactory,
        residual: ModuleFactory,
        feedforward: ModuleFactory,
        position: ModuleFactory,
        embedding: Callable[..., nn.Embedding],
        linear: Callable[[nn.Linear], object],
    ):
        super().__init__()
        self.context = context
        self.width = width
        self.embedding = embedding(vocabulary_size, width)
        self.position = position(context, self.embedding.embedding_dim)
        blocks = [
            TransformerBlock(
                residual(attention(width, heads, context=context, causal=True, dropout=dropout), norm, width),
                residual(feedforward(width, dropout=dropout), norm, width),
            )
            for _ in range(depth)
        ]
        self.blocks = nn.Sequential(*blocks)
        for module in list(self.blocks.modules()):  # a list, because parametrising adds modules
            if isinstance(module, nn.Linear) and not is_parametrized(module):
                linear(module)
        normalised = all(contracts.normalises_output(block.feedforward) for block in blocks)
        self.final_norm = nn.Identity() if normalised else norm(width)
        self.unembedding = nn.Linear(width, vocabulary_size)
        nn.init.normal_(self.embedding.weight, std=EMBEDDING_STD)
        nn.init.xavier_uniform_(self.unembedding.weight)
        nn.init.zeros_(self.unembedding.bias)

    @property
    def longest_input(self) -> int | None:
        """Longest sequence the model accepts, in tokens; None where there is no limit."""
        limits = (contracts.longest_input(module) for module in self.modules() if module is not self)
        return min((limit for limit in limits if limit is not None), default=None)

    def embed(self, ids: Int[Tensor, "B N"]) -> Float[Tensor, "B N D"]:
        """Return the tokens that enter the first block: embedded, with their positions, blank where not filled."""
        filled = self.position(self.embedding(ids))
        return nn.functional.pad(filled, (0, self.width - filled.shape[-1]))

    def trunk(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Map embedded tokens to the features behind the last block."""
        with one_weight(self):
            return self.final_norm(self.blocks(x))

    def encode(self, ids: Int[Tensor, "B N"]) -> Float[Tensor, "B N D"]:
        """Return the features behind the last block."""
        return self.trunk(self.embed(ids))

    def forward(self, ids: Int[Tensor, "B N"]) -> Float[Tensor, "B N V"]:
        """Return the logits of the next symbol at each position.

        Raises:
            ValueError: the sequence is longer than the model accepts (`longest_input`).
        """
        return self.unembedding(self.encode(ids))

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """Upper bound on the constant of the trunk, from embedded tokens to features: the product of its layers'.

        `lipformer.certify` shows what it is made of, and goes on to the logits.

        Args:
            p: 2, ``math.inf`` or "mixed".
            length: N for which the bound holds, shorter ones included; None for ``context``.
        """
        length = self.context if length is None else length
        return compose(*(contracts.lipschitz_bound(layer, p, length) for layer in self._layers()))

    def inversion_obstacle(self) -> str:
        """Return why the trunk has no inverse at present, as its first such layer says; "" if it has one."""
        return next(filter(None, map(contracts.inversion_obstacle, self._layers())), "")

    def invert(self, y: Float[Tensor, "B N D"], **options: Any) -> Solution:
        """Return the embedded tokens of the trunk's features, layer by layer from the last to the first.

        Args:
            y: features behind the last block.
            options: of :func:`~lipformer.modules.fixed_point.solve`, for each layer.

        Returns:
            The tokens; the largest number of iterations of a layer; of each sequence the largest entry of
            abs(trunk(x) - y); whether every layer's iteration converged. A small residual does not imply a small error
            if the
            scales of a normalisation are small: what was lost there by rounding in the forward pass cannot be
                recovered.

        Raises:
            RuntimeError: a normalisation has not been set by a training batch yet.
            TypeError: a layer of the trunk is not invertible.
            ValueError: ``y`` is not features of the trunk's width.
        """
        self._check_tokens(y)
        x, iterations, converged = y, 0, True
        layers = self._bijections()
        for layer in reversed(layers):
            assert isinstance(layer, Invertible)
            solution = layer.invert(x, **options)
            x, iterations = solution.x, max(iterations, solution.iterations)
            converged = converged and solution.converged
        with torch.no_grad():
            residual = (self.trunk(x) - y).abs().flatten(1).amax(-1)
        return Solution(x, iterations, residual.nan_to_num(nan=math.inf), converged, len(layers))

    def log_det(self, x: Float[Tensor, "B N D"], **options: Any) -> Float[Tensor, " B"]:
        """Return log|det dy/dx| of the trunk for each sequence, summed over its layers.

        Args:
            x: embedded tokens.
            options: of :func:`~lipformer.modules.log_det.log_det`, for each layer.

        Raises:
            TypeError: a layer of the trunk is not invertible.
            ValueError: ``x`` is not tokens of the trunk's width.
        """
        self._check_tokens(x)
        total = x.new_zeros(len(x))
        for layer in self._bijections():
            assert isinstance(layer, Invertible)
            y = layer(x)  # first: in train mode it may set a normalisation
            total = total + layer.log_det(x, **options)
            x = y
        return total

    def _layers(self) -> list[nn.Module]:
        """Return the layers that the trunk applies, in order, without those that are the identity."""
        layers = [place.module for place in walk(self) if place.role in TRUNK_ROLES]
        return [layer for layer in layers if type(layer).forward is not nn.Identity.forward]

    def _check_tokens(self, x: Tensor) -> None:
        if x.dim() != 3 or x.shape[-1] != self.width or not x.is_floating_point():
            raise ValueError(
                f"expected tokens of shape (B, N, {self.width}) as model.embed or model.trunk return them, not "
                f"{x.dtype} of shape {tuple(x.shape)}"
            )

    def _bijections(self) -> list[nn.Module]:
        if obstacle := self.inversion_obstacle():
            raise TypeError(obstacle)
        return self._layers()


EMBEDDING_STD = 1.0  # the size of the sinusoidal positions that are added to it
