"""The figures and the report of a run are made when it ends; a failure to make them never fails the run."""

import logging
from pathlib import Path

from pytorch_lightning.loggers import Logger

from lipformer.errors import one_line
from lipformer.runs import layout
from lipformer.system.ranks import rank

log = logging.getLogger(__name__)


def publish_figures(folder: Path, loggers: list[Logger]) -> None:
    """Draw the figures of a run into ``<folder>/figures``, and pass them to the loggers that take images."""
    if rank() != 0:
        return
    try:
        from lipformer.figures import draw_run  # slow to import, and needed only now
        from lipformer.runs.record import read_record
        from lipformer.training.loggers.choices import log_figures

        log_figures(loggers, draw_run(read_record(folder), folder / layout.FIGURES))
    except Exception as error:  # whatever the error, the training itself has ended
        _warn("the figures could not be drawn", error, folder)


def publish_report(folder: Path) -> None:
    """Write ``<folder>/report.html``, and log where it is."""
    if rank() != 0 or not (folder / layout.METRICS_CSV).is_file():
        return
    try:
        from lipformer.report import write_report
        from lipformer.runs.record import read_record

        file = write_report([read_record(folder)], folder / layout.REPORT)
        log.info("look at it in: %s", file)
    except Exception as error:
        _warn("the report could not be written", error, folder)


def say_how_to_continue(folder: Path) -> None:
    """Log the command that continues a training that was stopped, if it left a checkpoint."""
    if rank() == 0 and (folder / layout.CHECKPOINTS / layout.LAST).is_file():
        log.info("continue it with: python train.py resume=%s", folder)


def _warn(what: str, error: Exception, folder: Path) -> None:
    log.warning("%s (%s); try: python evaluate.py study=report study.runs=%s", what, one_line(error), folder)
    log.info("where that came from", exc_info=error)  # into train.log; the terminal shows no traceback
