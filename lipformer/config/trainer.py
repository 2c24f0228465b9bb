"""How long to train, on what, and how often to look."""

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from lipformer.config.checks import require, require_one_of


@dataclass
class TrainerConfig:
    """How long to train, on what, and how often to look."""

    accelerator: str = MISSING
    devices: Any = MISSING
    precision: str = MISSING
    threads: int | None = MISSING
    max_steps: int = MISSING
    max_epochs: int = MISSING
    gradient_clip: float | None = MISSING
    val_every_steps: int = MISSING
    log_every_steps: int = MISSING
    deterministic: bool = MISSING
    compile: bool = MISSING
    progress: str = MISSING
    report: bool = MISSING

    def __post_init__(self) -> None:
        require_one_of("trainer.accelerator", self.accelerator, ("auto", "cpu", "gpu"))
        require_one_of(
            "trainer.precision", self.precision, ("32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true")
        )
        require_one_of("trainer.progress", self.progress, ("auto", "rich", "plain", "none"))
        for key in ("max_steps", "max_epochs"):
            value = getattr(self, key)
            require(value == -1 or value >= 1, f"trainer.{key}", value, "at least 1, or -1 for no limit")
        bounded = self.max_steps != -1 or self.max_epochs != -1
        require(bounded, "trainer.max_steps", -1, "at least 1 where trainer.max_epochs=-1, or training never ends")
        for key in ("val_every_steps", "log_every_steps"):
            require(getattr(self, key) >= 1, f"trainer.{key}", getattr(self, key), "at least 1")
        for key in ("threads", "gradient_clip"):
            value = getattr(self, key)
            require(value is None or value > 0, f"trainer.{key}", value, "above 0, or null")
