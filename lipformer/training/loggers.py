"""Where metrics go besides ``metrics.csv``: a function for each file of `conf/logger/`."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import Logger, TensorBoardLogger

from lipformer.errors import UsageError
from lipformer.run_folder import Outcome
from lipformer.training.wandb_run import WandbRunLogger, resolve_mode


def no_further_logger(*, folder: Path, config: dict[str, Any]) -> Logger | None:
    """Log to ``metrics.csv`` alone."""
    return None


def tensorboard_logger(*, folder: Path, config: dict[str, Any]) -> Logger:
    """Log to event files in ``<folder>/tensorboard``.

    Raises:
        UsageError: tensorboard is not installed.
    """
    try:
        return TensorBoardLogger(folder, name="tensorboard", version="", default_hp_metric=False)
    except ModuleNotFoundError as error:
        raise UsageError("logger=tensorboard: not installed; pip install 'lipformer[tensorboard]'") from error


def wandb_logger(
    *,
    folder: Path,
    config: dict[str, Any],
    project: str,
    entity: str | None,
    mode: str,
    init_timeout: float,
    finish_timeout: float,
) -> Logger | None:
    """Log to a Weights & Biases run with its files in ``<folder>/wandb``; None where wandb is disabled.

    Raises:
        UsageError: see `resolve_mode`.
    """
    mode = resolve_mode(mode)
    if mode == "disabled":
        return None
    return WandbRunLogger(
        folder=folder,
        config=config,
        online=mode == "online",
        project=project,
        entity=entity,
        init_timeout=init_timeout,
        finish_timeout=finish_timeout,
    )


@contextlib.contextmanager
def finished(logger: Logger | None) -> Iterator[None]:
    """Finish `logger`'s run when the block ends, with the exit code of whatever ended it."""
    outcome = Outcome()
    try:
        yield
    except BaseException as error:
        outcome.end_by(error)
        raise
    finally:
        if isinstance(logger, WandbRunLogger):  # Lightning closes the others itself
            logger.finish(outcome)
