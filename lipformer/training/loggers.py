"""Where metrics go besides ``metrics.csv``."""

from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import Logger


def no_further_logger(*, folder: Path, config: dict[str, Any]) -> Logger | None:
    """Log to ``metrics.csv`` alone."""
    return None
