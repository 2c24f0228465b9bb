"""Options of the attention kinds."""

import math
from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from lipformer.config.checks import Factory, require, require_norm, require_one_of


def _check_locality(locality: float | None) -> None:
    in_range = locality is None or 0 < locality < math.inf
    require(in_range, "attention.locality", locality, "above 0, or null for no penalty on distance")


@dataclass
class AttentionConfig(Factory):
    """Options of `dot_product` and `l2`."""

    fused: bool = MISSING


@dataclass
class TiedL2Config(AttentionConfig):
    """Options of `tied_l2` and `tied_l2_matched`."""

    columns: int = MISSING
    locality: float | None = MISSING

    def __post_init__(self) -> None:
        require(self.columns >= 1, "attention.columns", self.columns, "at least 1")
        _check_locality(self.locality)


@dataclass
class ContractiveL2Config(TiedL2Config):
    """Options of `contractive_l2`."""

    p: Any = MISSING
    scale: float = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        require_norm("attention.p", self.p)
        require(0 < self.scale < 1, "attention.scale", self.scale, "above 0 and below 1")


@dataclass
class ContractiveFactorsConfig(AttentionConfig):
    """Options of `contractive_l2_decoupled` and `contractive_l2_blocks`."""

    scale: float = MISSING
    temperature: float = MISSING
    locality: float | None = MISSING

    def __post_init__(self) -> None:
        _check_locality(self.locality)
        require(0 < self.scale < 1, "attention.scale", self.scale, "above 0 and below 1")
        require(0 < self.temperature < math.inf, "attention.temperature", self.temperature, "above 0")


@dataclass
class SigmoidConfig(Factory):
    """Options of `sigmoid`."""

    bias: float | None = MISSING

    def __post_init__(self) -> None:
        require(self.bias is None or math.isfinite(self.bias), "attention.bias", self.bias, "a number, or null")


@dataclass
class KernelConfig(AttentionConfig):
    """Options of `relu_kernel` and `elu_kernel`."""

    features: str = MISSING
    eps: float = MISSING

    def __post_init__(self) -> None:
        require_one_of("attention.features", self.features, ("elu", "relu"))
        require(0 < self.eps < math.inf, "attention.eps", self.eps, "above 0")


@dataclass
class QKNormConfig(AttentionConfig):
    """Options of `qk_norm`."""

    centred: bool = MISSING
    eps: float = MISSING

    def __post_init__(self) -> None:
        require(0 < self.eps < math.inf, "attention.eps", self.eps, "above 0")


@dataclass
class CosineAttentionConfig(AttentionConfig):
    """Options of `cosine` attention."""

    temperature: float = MISSING
    gain: float = MISSING
    eps: float = MISSING

    def __post_init__(self) -> None:
        for key in ("temperature", "gain", "eps"):
            value = getattr(self, key)
            require(0 < value < math.inf, f"attention.{key}", value, "above 0")
