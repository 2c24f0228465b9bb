"""One training run, from a validated configuration to the figures in its folder."""

import logging
import signal
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from lipformer.config import TrainConfig
from lipformer.runs import layout
from lipformer.runs.folder import local_rank
from lipformer.runs.outcome import Outcome
from lipformer.system.atomic import replace_text
from lipformer.system.signals import Terminated, ending_signals
from lipformer.tasks import Task
from lipformer.training.finish import best_score, finish
from lipformer.training.loggers.choices import finished
from lipformer.training.parts import Training, build_training
from lipformer.training.resume import Resumed
from lipformer.training.threads import choose_threads

log = logging.getLogger(__name__)


def run_training(
    settings: TrainConfig, config: dict[str, Any], folder: Path, outcome: Outcome, resumed: Resumed | None = None
) -> float | None:
    """Train, and leave checkpoints and figures in `folder`.

    Args:
        settings: the validated configuration.
        config: the same as plain containers: what is stored and logged.
        folder: the run folder, claimed and empty but for the log.
        outcome: its `best` is kept up to date, so that an interrupted run reports it too.
        resumed: the run to continue, if any.

    Returns:
        The best value of the task's objective on valid, such as nats per character; None where no validation was
        reached.

    Raises:
        LipformerError: data, model or trainer refuse the configuration, or training diverged.
    """
    prepare(settings, config, folder)
    training = build_training(settings, config, folder, resumed)
    log.info("model: %s parameters; run folder: %s", f"{training.parameters:,}", folder)
    ended = Outcome()
    with finished(training.logger):
        try:
            fit(training)
        except BaseException as error:
            ended.end_by(error)
            raise
        finally:
            outcome.best = ended.best = best_score(training)
            finish(training, folder, ended)
    say_what_next(training.module.task, outcome.best, folder)
    return outcome.best


def prepare(settings: TrainConfig, config: dict[str, Any], folder: Path) -> None:
    """Write ``config.yaml``, on the first rank, and set the number of threads."""
    if local_rank() == 0:
        replace_text(folder / layout.CONFIG, OmegaConf.to_yaml(OmegaConf.create(config)))
    threads = choose_threads(
        config["trainer"]["threads"], width=settings.width, batch_tokens=config["data"]["batch_tokens"]
    )
    torch.set_num_threads(threads)


def fit(training: Training) -> None:
    """Run the training loop to its end.

    Raises:
        DivergedError: a loss, a gradient or a weight is not finite.
        KeyboardInterrupt: there was a Ctrl-C; all is saved by then, but a sweep must not go on.
        Terminated: there was another signal.
    """
    trainer = training.trainer
    path = training.resumed.path if training.resumed else None
    try:
        with ending_signals.deferred():  # to the end of a step
            trainer.fit(training.module, training.data, ckpt_path=path, weights_only=True)
    except Terminated:
        raise
    except SystemExit:
        if trainer.interrupted:  # Lightning turns Ctrl-C into exit code 1
            signal.signal(signal.SIGINT, signal.default_int_handler)  # and leaves it ignored, in last uploads too
            raise KeyboardInterrupt from None
        raise
    if training.stop.asked:
        raise KeyboardInterrupt


def say_what_next(task: Task, best: float | None, folder: Path) -> None:
    """Log the best score of a training that finished, and what can be done with it."""
    if best is not None:
        log.info("best valid: %s", ", ".join(f"{measure.of(best):.4f} {measure.short}" for measure in task.measures))
    log.info("test it with: python evaluate.py checkpoint=%s", folder)
