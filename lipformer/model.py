"""The character-level Transformer: embed, a stack of blocks, a linear head."""

from collections.abc import Callable

from jaxtyping import Float, Int
from torch import Tensor, nn

ModuleFactory = Callable[..., nn.Module]


class TransformerBlock(nn.Module):
    """Attention over the tokens, then a map of each token, each on a skip connection.

    Args:
        attention: the attention branch in its residual.
        feedforward: the token-wise branch in its residual.
    """

    def __init__(self, attention: nn.Module, feedforward: nn.Module):
        super().__init__()
        self.attention = attention
        self.feedforward = feedforward

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Apply both residuals."""
        return self.feedforward(self.attention(x))


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
        position: called as ``position(context, width)``.
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
    ):
        super().__init__()
        self.context = context
        self.embedding = nn.Embedding(vocabulary_size, width)
        self.position = position(context, width)
        blocks = [
            TransformerBlock(
                residual(attention(width, heads, context=context, causal=True, dropout=dropout), norm, width),
                residual(feedforward(width, dropout=dropout), norm, width),
            )
            for _ in range(depth)
        ]
        self.blocks = nn.Sequential(*blocks)
        normalised = all(block.feedforward.normalises_output for block in blocks)
        self.final_norm = nn.Identity() if normalised else norm(width)
        self.head = nn.Linear(width, vocabulary_size)
        nn.init.normal_(self.embedding.weight, std=EMBEDDING_STD)
        nn.init.xavier_uniform_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @property
    def longest_input(self) -> int | None:
        """Longest sequence the model accepts, in tokens; None where there is no limit."""
        parts = (module for module in self.modules() if module is not self)
        limits = (getattr(module, "longest_input", None) for module in parts)
        return min((limit for limit in limits if limit is not None), default=None)

    def encode(self, ids: Int[Tensor, "B N"]) -> Float[Tensor, "B N D"]:
        """Return the features behind the last block."""
        return self.final_norm(self.blocks(self.position(self.embedding(ids))))

    def forward(self, ids: Int[Tensor, "B N"]) -> Float[Tensor, "B N V"]:
        """Return the logits of the next symbol at each position.

        Raises:
            ValueError: the sequence is longer than the model accepts (`longest_input`).
        """
        return self.head(self.encode(ids))


EMBEDDING_STD = 1.0  # of the size of the sinusoidal positions that are added
