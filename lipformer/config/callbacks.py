"""Options of the callbacks."""

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from lipformer.config.checks import require, require_norm


@dataclass
class CallbackConfig:
    """A Lightning callback and its options; any name under ``callbacks`` may hold one."""

    _target_: str = MISSING


@dataclass
class StabilityConfig(CallbackConfig):
    """Options of `callbacks.stability`."""

    every_n_steps: int = MISSING
    dear_every_n_steps: int = MISSING
    sentences: int = MISSING
    p: Any = MISSING

    def __post_init__(self) -> None:
        for key in ("every_n_steps", "dear_every_n_steps", "sentences"):
            require(getattr(self, key) >= 1, f"callbacks.stability.{key}", getattr(self, key), "at least 1")
        require_norm("callbacks.stability.p", self.p)


@dataclass
class DivergenceGuardConfig(CallbackConfig):
    """Options of `callbacks.divergence_guard`."""

    loss_above: float | None = MISSING
    patience: int = MISSING

    def __post_init__(self) -> None:
        key = "callbacks.divergence_guard"
        positive = self.loss_above is None or self.loss_above > 0
        require(positive, f"{key}.loss_above", self.loss_above, "above 0, or null for no limit")
        require(self.patience >= 1, f"{key}.patience", self.patience, "at least 1")


@dataclass
class SamplesConfig(CallbackConfig):
    """Options of `callbacks.samples`."""

    sentences: int = MISSING
    temperature: float = MISSING
    max_chars: int = MISSING

    def __post_init__(self) -> None:
        require(self.sentences >= 1, "callbacks.samples.sentences", self.sentences, "at least 1")
        require(self.temperature >= 0, "callbacks.samples.temperature", self.temperature, "zero (greedy) or more")
        require(self.max_chars >= 1, "callbacks.samples.max_chars", self.max_chars, "at least 1")
