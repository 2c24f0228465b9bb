"""Options of the loggers."""

from dataclasses import dataclass

from omegaconf import MISSING

from lipformer.config.checks import Factory, require, require_one_of


@dataclass
class LoggerConfig(Factory):
    """Options of `csv` (always on) and `tensorboard`."""


@dataclass
class WandbConfig(LoggerConfig):
    """Options of `wandb`."""

    project: str = MISSING
    entity: str | None = MISSING
    mode: str = MISSING
    init_timeout: float = MISSING
    finish_timeout: float = MISSING

    def __post_init__(self) -> None:
        require_one_of("logger.mode", self.mode, ("auto", "online", "offline", "disabled"))
        for key in ("init_timeout", "finish_timeout"):
            value = getattr(self, key)
            require(value > 0, f"logger.{key}", value, "above 0 (seconds)")
