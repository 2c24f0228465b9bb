"""Options of the other parts of the model: normalisations, residuals, embeddings, feed-forwards."""

from dataclasses import dataclass

from lipformer.options.checks import number, one_of, or_null
from lipformer.options.option import REQUIRED, PartOptions, option


@dataclass
class NormOptions(PartOptions):
    """Options of `layer_norm` and `rms_norm`."""

    schema = "norm/scaled"

    eps: float = option(1e-5, "added to the variance, or to the mean square", number(at_least=0))


@dataclass
class ActNormOptions(PartOptions):
    """Options of `act_norm`."""

    schema = "norm/act_norm"

    max_scale: float | None = option(None, "largest learned scale", or_null(number(above=0), "for no limit"))


@dataclass
class LayeredResidualOptions(PartOptions):
    """Options of `weighted` and `convex`."""

    schema = "residual/layered"

    layers: int = option(
        REQUIRED,
        "number of blocks, L; the initial weight of a branch is 1/L (weighted) or 1/(2L) (convex)",
        number(at_least=1),
    )


@dataclass
class EmbeddingOptions(PartOptions):
    """Options of `full` and `blank`."""

    schema = "embedding/embedding"

    filled: float = option(1.0, "share of the channels that embedding and position fill", number(above=0, at_most=1))


@dataclass
class FeedForwardOptions(PartOptions):
    """Options of `relu` and `gelu`."""

    schema = "feedforward/dense"

    activation: str = option("relu", "activation between the two linear maps", one_of("relu", "gelu", "silu"))
    expansion: int = option(4, "hidden features as a multiple of width", number(at_least=1))


@dataclass
class ContractiveFeedForwardOptions(FeedForwardOptions):
    """Options of `contractive`."""

    schema = "feedforward/contractive"

    scale: float = option(0.97, "largest Lipschitz constant of the branch", number(above=0, below=1))
