"""One training run, from a validated configuration to the figures in its folder."""

import logging
import os
import re
import signal
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from lipformer.config import TrainConfig
from lipformer.errors import LostProcessError, Pruned
from lipformer.runs import layout
from lipformer.runs.environment import add_environment
from lipformer.runs.outcome import Outcome
from lipformer.runs.search import JobTrial
from lipformer.system.atomic import replace_text
from lipformer.system.ranks import rank
from lipformer.system.signals import Terminated, ending_signals
from lipformer.tasks import Task
from lipformer.training.determinism import flags_restored
from lipformer.training.environment import describe_environment
from lipformer.training.finish import best_score, finish
from lipformer.training.loggers.choices import finished
from lipformer.training.parts import Training, build_training
from lipformer.training.resume import Resumed, carry_over
from lipformer.training.threads import choose_threads
from lipformer.training.trainer import devices_here

log = logging.getLogger(__name__)

LOST_PROCESS = re.compile(r"Connection (closed|reset) by peer")
"""Found in the error of torch's communication between processes when one of them has ended."""


@flags_restored()
def run_training(
    settings: TrainConfig,
    config: dict[str, Any],
    folder: Path,
    outcome: Outcome,
    resumed: Resumed | None = None,
    trial: JobTrial | None = None,
    command: str | None = None,
) -> float | None:
    """Train a model, and leave checkpoints and figures in `folder`.

    Args:
        settings: the validated configuration.
        config: the same configuration as plain containers, which are stored and logged.
        folder: the run folder, claimed by this process; it holds nothing but the log.
        outcome: its `best` is set even if the training is interrupted, so that the run's end can report it.
        resumed: the run to continue, if any.
        trial: the trial of a search that this training is, if any.
        command: the command line that started it, to be recorded.

    Returns:
        The best value of the task's objective on valid, such as nats per character; None if there was no validation.

    Raises:
        LipformerError: a part of the training cannot be built as configured, or the training diverged or was pruned.
    """
    prepare(settings, config, folder, resumed)
    training = build_training(settings, config, folder, resumed, trial)
    environment = describe_environment(seed=settings.seed, fingerprints=training.data.fingerprints, command=command)
    add_environment(folder, environment)
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


def prepare(settings: TrainConfig, config: dict[str, Any], folder: Path, resumed: Resumed | None) -> None:
    """Write ``config.yaml`` and the rows of the run that is continued, on the first rank, and set the CPU threads."""
    if rank() == 0:
        replace_text(folder / layout.CONFIG, OmegaConf.to_yaml(OmegaConf.create(config)))
        if resumed is not None:
            carry_over(resumed, folder)
    here = devices_here(config["trainer"])
    threads = choose_threads(
        config["trainer"]["threads"],
        width=settings.width,
        batch_tokens=config["data"]["batch_tokens"] // (here * config["trainer"]["num_nodes"]),
        processes=here,
        num_workers=config["data"].get("num_workers", 0),
    )
    torch.set_num_threads(threads)
    if here > 1:  # else Lightning would choose the number for each of several processes itself
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))


def fit(training: Training) -> None:
    """Run the training loop to its end.

    Raises:
        LostProcessError: another process of the training has failed.
        DivergedError: a loss, a gradient or a weight is not finite.
        KeyboardInterrupt: the user pressed Ctrl-C; everything is saved by then, and a sweep ends with it.
        Pruned: the search that the training belongs to has stopped it.
        Terminated: the process received another signal that ends it.
    """
    trainer = training.trainer
    path = training.resumed.path if training.resumed else None
    try:
        with ending_signals.deferred():  # until a step has ended
            trainer.fit(training.module, training.data, ckpt_path=path, weights_only=True)
    except Terminated:
        raise
    except SystemExit:
        if trainer.interrupted:  # Lightning turns Ctrl-C into exit code 1
            # and ignores it from then on, also while results are uploaded.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise KeyboardInterrupt from None
        raise
    except RuntimeError as error:
        if trainer.world_size > 1 and LOST_PROCESS.search(str(error)):
            raise LostProcessError(
                f"another process of this training has ended; the logs in {trainer.default_root_dir} say why"
            ) from error
        raise
    if training.stop.asked:
        raise KeyboardInterrupt
    if training.pruning is not None and training.pruning.reason:
        raise Pruned(training.pruning.reason)


def say_what_next(task: Task, best: float | None, folder: Path) -> None:
    """Log the best score of a finished training, and the command that tests the model."""
    if best is not None:
        log.info("best valid: %s", ", ".join(f"{measure.of(best):.4f} {measure.short}" for measure in task.measures))
    log.info("test it with: python evaluate.py checkpoint=%s", folder)
