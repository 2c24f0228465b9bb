"""Options of the other parts of the model: norms, residuals, embeddings, feed-forwards."""

from dataclasses import dataclass

from omegaconf import MISSING

from lipformer.config.checks import Factory, require, require_one_of


@dataclass
class NormConfig(Factory):
    """Options of `layer_norm` and `rms_norm`."""

    eps: float = MISSING

    def __post_init__(self) -> None:
        require(self.eps >= 0, "norm.eps", self.eps, "zero or more")


@dataclass
class ActNormConfig(Factory):
    """Options of `act_norm`."""

    max_scale: float | None = MISSING

    def __post_init__(self) -> None:
        positive = self.max_scale is None or self.max_scale > 0
        require(positive, "norm.max_scale", self.max_scale, "above 0, or null for no limit")


@dataclass
class LayeredResidualConfig(Factory):
    """Options of `weighted` and `convex`."""

    layers: int = MISSING

    def __post_init__(self) -> None:
        require(self.layers >= 1, "residual.layers", self.layers, "at least 1")


@dataclass
class EmbeddingConfig(Factory):
    """Options of `full` and `blank`."""

    filled: float = MISSING

    def __post_init__(self) -> None:
        require(0 < self.filled <= 1, "embedding.filled", self.filled, "above 0 and at most 1")


@dataclass
class FeedForwardConfig(Factory):
    """Options of `relu` and `gelu`."""

    activation: str = MISSING
    expansion: int = MISSING

    def __post_init__(self) -> None:
        require_one_of("feedforward.activation", self.activation, ("relu", "gelu", "silu"))
        require(self.expansion >= 1, "feedforward.expansion", self.expansion, "at least 1")


@dataclass
class ContractiveFeedForwardConfig(FeedForwardConfig):
    """Options of `contractive`."""

    scale: float = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.scale < 1, "feedforward.scale", self.scale, "above 0 and below 1")
