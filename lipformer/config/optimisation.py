"""Options of optimizers, schedules and regularizers."""

import math
from dataclasses import dataclass

from omegaconf import MISSING

from lipformer.config.checks import Factory, require


@dataclass
class OptimizerConfig(Factory):
    """Options of `adam` and `adamw`."""

    lr: float = MISSING
    betas: list[float] = MISSING
    eps: float = MISSING
    weight_decay: float = MISSING

    def __post_init__(self) -> None:
        require(self.lr > 0 and math.isfinite(self.lr), "lr", self.lr, "above 0")
        in_range = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        require(in_range, "optimizer.betas", self.betas, "two numbers from 0 to below 1")
        require(self.eps >= 0, "optimizer.eps", self.eps, "zero or more")
        require(self.weight_decay >= 0, "optimizer.weight_decay", self.weight_decay, "zero or more")


@dataclass
class ScheduleConfig(Factory):
    """Options of `constant` and `inverse_sqrt`."""

    warmup_steps: int = MISSING

    def __post_init__(self) -> None:
        require(self.warmup_steps >= 0, "schedule.warmup_steps", self.warmup_steps, "zero or more")


@dataclass
class CosineConfig(ScheduleConfig):
    """Options of `cosine`."""

    total_steps: int = MISSING
    final_fraction: float = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.total_steps >= 1, "schedule.total_steps", self.total_steps, "at least 1 (trainer.max_steps)")
        require(0 <= self.final_fraction <= 1, "schedule.final_fraction", self.final_fraction, "from 0 to 1")


@dataclass
class RegularizerConfig(Factory):
    """What `jasmin` and `jacobian` share."""

    weight: float = MISSING

    def __post_init__(self) -> None:
        require(0 < self.weight < math.inf, "regularizer.weight", self.weight, "above 0")


@dataclass
class JasminConfig(RegularizerConfig):
    """Options of `jasmin`."""

    k: int = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        # With k = 1 the penalty would be log 1.
        require(self.k == 0 or self.k >= 2, "regularizer.k", self.k, "0, or at least 2")


@dataclass
class JacobianConfig(RegularizerConfig):
    """Options of `jacobian`."""

    iterations: int = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.iterations >= 1, "regularizer.iterations", self.iterations, "at least 1")
