"""Options of the corpora and of the loader that they share."""

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from lipformer.config.checks import require, require_one_of


@dataclass
class DataConfig:
    """Loader options that every corpus shares."""

    _target_: str = MISSING
    max_length: int | None = MISSING
    unknown: str = MISSING
    batch_tokens: int = MISSING
    num_workers: int = MISSING

    def __post_init__(self) -> None:
        if self.max_length is not None:
            require(self.max_length >= 2, "data.max_length", self.max_length, "at least 2, or null for all lines")
        require_one_of("data.unknown", self.unknown, ("error", "replace"))
        require(self.batch_tokens >= 1, "data.batch_tokens", self.batch_tokens, "at least 1")
        require(self.num_workers >= 0, "data.num_workers", self.num_workers, "zero or more")


@dataclass
class PennTreebankConfig(DataConfig):
    """Options of `ptb`."""

    dir: str | None = MISSING
    download: bool = MISSING
    verify: bool = MISSING


@dataclass
class TextFilesConfig(DataConfig):
    """Options of `text_files`."""

    train: str = MISSING
    valid: str | None = MISSING
    test: str | None = MISSING
    split: Any = MISSING
