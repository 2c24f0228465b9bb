"""The last steps of a training, however it ended: its metrics are written, a summary printed and figures drawn."""

import logging
import math
from pathlib import Path
from typing import Any

from lipformer.errors import WriteError
from lipformer.runs import layout
from lipformer.runs.folder import write_metrics
from lipformer.runs.metric_names import PARAMETERS, SECONDS, STEPS, TELEMETRY_SECONDS, TOKENS_PER_SECOND, TOKENS_SEEN
from lipformer.runs.outcome import Outcome
from lipformer.runs.record import read_series
from lipformer.system.ranks import rank
from lipformer.system.signals import Terminated
from lipformer.training.parts import Training
from lipformer.training.publish import publish_figures
from lipformer.training.summary import print_summary

log = logging.getLogger(__name__)


def best_score(training: Training) -> float | None:
    """Return the best value of the task's objective on valid; None if there was no validation."""
    score = training.best.best_model_score
    return float(score) if score is not None and math.isfinite(score) else None


def finish(training: Training, folder: Path, ended: Outcome) -> None:
    """Write ``metrics.json``, print the summary and draw the figures.

    Args:
        training: the training that has ended.
        folder: the run folder.
        ended: how it ended.

    Raises:
        WriteError: if the training finished but its metrics cannot be written.
    """
    latest = training.monitor.latest if training.monitor else {}
    metrics = final_metrics(training, ended.best, latest, _carried(training, folder))
    try:
        write_metrics(folder, metrics)
    except WriteError as error:
        if ended.exit_code == 0:
            raise
        log.warning("%s", error)  # how the training ended is not changed by this
    print_summary(metrics, latest, training.module.task, training.options["progress"], ended.status)
    if training.options["report"]:
        _draw_figures(training, folder, ended)


def final_metrics(
    training: Training, best: float | None, latest: dict[str, float], carried: dict[str, float]
) -> dict[str, Any]:
    """Return the contents of ``metrics.json``: the best and the last value of each metric, and what it all cost.

    Args:
        training: the training that has ended.
        best: the best value of the objective on valid, or None.
        latest: the last value of each metric of stability.
        carried: the last value of each metric in ``metrics.csv``, of a continued run: it may have ended before it
            measured all of them again.
    """
    trainer, module, clock, monitor = training.trainer, training.module, training.throughput, training.monitor
    return {
        **module.task.metrics("best/val", best),
        **carried,
        **latest,
        **{name: float(value) for name, value in trainer.callback_metrics.items()},
        **({TELEMETRY_SECONDS: monitor.seconds} if monitor else {}),
        PARAMETERS: training.parameters,
        STEPS: trainer.global_step,
        TOKENS_SEEN: module.tokens_seen,
        SECONDS: clock.seconds(),
        TOKENS_PER_SECOND: clock.tokens_per_second(module.tokens_seen),
    }


def _carried(training: Training, folder: Path) -> dict[str, float]:
    if training.resumed is None or rank() != 0:
        return {}
    return {name: float(one.values[-1]) for name, one in read_series(folder / layout.METRICS_CSV).items()}


def _draw_figures(training: Training, folder: Path, ended: Outcome) -> None:
    try:
        publish_figures(folder, training.trainer.loggers)
    except (KeyboardInterrupt, Terminated):
        if ended.exit_code == 0:
            raise
        log.warning("the figures were left out: interrupted")  # how the training ended is not changed by this
