"""The embedding of the symbols."""

from torch import nn

from lipformer.options.parts import EmbeddingOptions


class TokenEmbedding(nn.Embedding):
    r"""A vector for each symbol, in all of the model's channels or in the first ones.

    .. math:: x_i = [e_{s_i}, 0, \dots, 0] \in \mathbb R^D, \qquad e_s \in \mathbb R^{\mathrm{round}(filled \cdot D)}

    Embedding and position fill the first ``embedding_dim`` channels, and the model leaves the others blank: there a
    contractive branch writes undisturbed, and an :class:`~lipformer.modules.normalisations.ActNorm` amplifies what it
    wrote.

    Shape: ``(B, N) -> (B, N, embedding_dim)``.

    Args:
        vocabulary_size: number of symbols, V.
        width: channels of the model, D.
        filled: as in :class:`~lipformer.options.parts.EmbeddingOptions`.

    Raises:
        ValueError: ``filled`` is out of range, or leaves no channel to fill.
    """

    def __init__(self, vocabulary_size: int, width: int, *, filled: float = EmbeddingOptions.filled):
        EmbeddingOptions.check(filled=filled)
        channels = round(filled * width)
        if channels < 1:
            raise ValueError(f"filled={filled} of {width} channels is none")
        super().__init__(vocabulary_size, channels)
