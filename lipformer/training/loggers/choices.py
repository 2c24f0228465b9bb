"""The loggers of metrics, samples and figures besides the run folder, one function for each file of `conf/logger/`."""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import Logger, TensorBoardLogger
from pytorch_lightning.utilities import rank_zero_only

from lipformer.errors import UsageError
from lipformer.options.loggers import WandbOptions
from lipformer.runs import layout
from lipformer.runs.outcome import Outcome
from lipformer.training.loggers.wandb_mode import first_line, resolve_mode
from lipformer.training.loggers.wandb_run import WandbRunLogger

log = logging.getLogger(__name__)


def no_further_logger(*, folder: Path, config: dict[str, Any]) -> Logger | None:
    """Add no logger: metrics are logged to ``metrics.csv`` alone."""
    return None


def tensorboard_logger(*, folder: Path, config: dict[str, Any]) -> Logger:
    """Return a logger to TensorBoard's event files in ``<folder>/tensorboard``.

    Raises:
        UsageError: tensorboard is not installed.
    """
    try:
        return TensorBoardLogger(folder, name=layout.TENSORBOARD, version="", default_hp_metric=False)
    except ModuleNotFoundError as error:
        raise UsageError("logger=tensorboard: not installed; pip install 'lipformer[tensorboard]'") from error


def wandb_logger(
    *,
    folder: Path,
    config: dict[str, Any],
    project: str = WandbOptions.project,
    entity: str | None = WandbOptions.entity,
    mode: str = WandbOptions.mode,
    init_timeout: float = WandbOptions.init_timeout,
    finish_timeout: float = WandbOptions.finish_timeout,
) -> Logger | None:
    """Return a logger to a Weights & Biases run with its files in ``<folder>/wandb``; None if wandb is disabled.

    Options as in :class:`~lipformer.options.loggers.WandbOptions`.

    Raises:
        UsageError: the mode is unknown or not possible (`resolve_mode`).
        ValueError: an option is out of its range.
    """
    WandbOptions.check(mode=mode, init_timeout=init_timeout, finish_timeout=finish_timeout)
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
    """Finish the run of `logger` when the block ends, with the exit code of the exception that ended it, if any."""
    outcome = Outcome()
    try:
        yield
    except BaseException as error:
        outcome.end_by(error)
        raise
    finally:
        if isinstance(logger, WandbRunLogger):  # Lightning closes the others itself
            logger.finish(outcome)


@rank_zero_only
def log_samples(loggers: Iterable[Logger], sentences: Sequence[str], step: int, tokens: int) -> None:
    """Log sampled sentences, as a table in wandb and as a text in TensorBoard. A failure is a warning.

    Args:
        loggers: those of the trainer; loggers that take numbers only are skipped.
        sentences: the sentences, without the end-of-line symbol.
        step: number of optimizer steps so far.
        tokens: number of tokens seen so far.
    """
    for logger in loggers:
        with _trouble_is_a_warning(logger, "samples"):
            if isinstance(logger, WandbRunLogger):
                logger.log_samples(sentences, step, tokens)
            elif isinstance(logger, TensorBoardLogger):
                # TensorBoard renders Markdown and HTML, which would hide <unk>. Four spaces make it a code block.
                lines = [f"    {number}  {' '.join(text.splitlines())}" for number, text in enumerate(sentences, 1)]
                logger.experiment.add_text("samples", "\n".join(lines), step)


@rank_zero_only
def log_figures(loggers: Iterable[Logger], files: Sequence[Path]) -> None:
    """Log the PNG files among `files` as ``figures/<stem>``, in wandb and TensorBoard. A failure is a warning.

    Args:
        loggers: those of the trainer; loggers that take numbers only are skipped.
        files: figures; files in other formats are skipped.
    """
    images = [file for file in files if file.suffix == ".png"]
    if not images:
        return
    for logger in loggers:
        with _trouble_is_a_warning(logger, "figures"):
            if isinstance(logger, WandbRunLogger):
                logger.log_figures(images)
            elif isinstance(logger, TensorBoardLogger):
                from matplotlib.image import imread  # slow to import, and needed here only

                for file in images:
                    logger.experiment.add_image(f"{layout.FIGURES}/{file.stem}", imread(file), dataformats="HWC")


@contextlib.contextmanager
def _trouble_is_a_warning(logger: Logger, what: str) -> Iterator[None]:
    """Turn an exception of the block into a warning that `logger` did not get `what`."""
    try:
        yield
    except Exception as error:
        log.warning("%s: the %s were not logged: %s", type(logger).__name__, what, first_line(error))
