"""Building the parts of a training from its configuration."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import Logger
from torch import nn

from lipformer.assembly.build import LOADER_KEYS, build_callbacks, build_corpus, build_model
from lipformer.assembly.checkpoint import checkpoint_extras
from lipformer.config import TrainConfig
from lipformer.config.targets import factory, locate
from lipformer.data.datamodule import CharDataModule
from lipformer.data.fingerprint import changed_splits
from lipformer.data.vocabulary import Vocabulary
from lipformer.errors import UsageError
from lipformer.runs.search import JobTrial
from lipformer.tasks import Task, task_of
from lipformer.training.callbacks.checkpoints import BestCheckpoint, LastCheckpoint
from lipformer.training.callbacks.progress import progress_callbacks
from lipformer.training.callbacks.pruning import PruneHopeless
from lipformer.training.callbacks.stability import StabilityMonitor
from lipformer.training.callbacks.stopping import CleanStop
from lipformer.training.callbacks.throughput import Throughput
from lipformer.training.loops import DueValidation, use_own_loops
from lipformer.training.resume import Resumed
from lipformer.training.task_module import TaskModule
from lipformer.training.trainer import build_trainer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Training:
    """The parts of one training.

    Attributes:
        module: the model, with its objective, optimizer and regularizer.
        data: the training and the validation split, in batches.
        trainer: runs the training loop, with all callbacks.
        logger: the logger besides that of ``metrics.csv``, if any.
        stop: the callback that answers Ctrl-C.
        pruning: the callback that reports to a search, if the training is a trial of one.
        best: the callback that keeps the best checkpoint and its score.
        throughput: the callback that measures the speed.
        monitor: the callback that measures the stability, if there is one.
        options: the group ``trainer`` of the configuration.
        resumed: the run that is continued, if any.
    """

    module: TaskModule
    data: CharDataModule
    trainer: pl.Trainer
    logger: Logger | None
    stop: CleanStop
    pruning: PruneHopeless | None
    best: BestCheckpoint
    throughput: Throughput
    monitor: StabilityMonitor | None
    options: dict[str, Any]
    resumed: Resumed | None

    @property
    def parameters(self) -> int:
        """Number of parameters of the model."""
        return sum(p.numel() for p in self.module.model.parameters())


def build_training(
    settings: TrainConfig,
    config: dict[str, Any],
    folder: Path,
    resumed: Resumed | None = None,
    trial: JobTrial | None = None,
) -> Training:
    """Build the parts of the training that a configuration describes.

    Args:
        settings: the validated configuration.
        config: the same configuration as plain containers.
        folder: the run folder.
        resumed: the run to continue, whose model is trained on.
        trial: the trial of a search that this training is, if any.

    Raises:
        UsageError: the data, the model or the trainer cannot be built as configured.
    """
    options = config["trainer"]
    task = task_of(config)
    stop = CleanStop()
    best = BestCheckpoint(folder, resumed.path if resumed else None, monitor=task.metric("val"))
    throughput, shown = progress_callbacks(options["progress"])
    watching = build_callbacks(config["callbacks"])
    logger = factory(config["logger"], "logger")(folder=folder, config=config)
    # Callbacks that watch come before those that save: an exception of theirs keeps a bad state from being saved.
    pruning = PruneHopeless(trial) if trial else None
    last = [*([pruning] if pruning else []), DueValidation()]
    callbacks: list[Callback] = [stop, *watching, best, LastCheckpoint(folder), *shown, *last]
    trainer = build_trainer(options, folder, callbacks, [logger] if logger else [])
    use_own_loops(trainer, stop)
    data, vocabulary = open_data(settings, config["data"], resumed)
    pl.seed_everything(settings.seed, workers=True, verbose=False)
    model = resumed.model.train() if resumed else build_model(config, len(vocabulary))
    if resumed and options["precision"] == "64-true":
        model.double()  # Lightning converts the model only after it has loaded the weights, which float32 would round
    if options["compile"]:
        model.compile(dynamic=True)  # in place: the weights keep their names; dynamic: batches differ in length
    return Training(
        module=build_module(task, settings, config, model, data),
        data=data,
        trainer=trainer,
        logger=logger,
        stop=stop,
        pruning=pruning,
        best=best,
        throughput=throughput,
        monitor=next((callback for callback in watching if isinstance(callback, StabilityMonitor)), None),
        options=options,
        resumed=resumed,
    )


def open_data(
    settings: TrainConfig, options: dict[str, Any], resumed: Resumed | None
) -> tuple[CharDataModule, Vocabulary]:
    """Read the training and the validation split, and log their sizes.

    Args:
        settings: the validated configuration.
        options: the group ``data`` of the configuration.
        resumed: the run to continue, if any.

    Returns:
        The data module, set up, and the vocabulary of the training split.

    Raises:
        DataError: a split cannot be read.
        UsageError: the run to continue was trained or validated on another text.
    """
    data = CharDataModule(
        build_corpus(options),
        context=settings.context,
        seed=settings.seed,
        **{key: options[key] for key in LOADER_KEYS},
    )
    data.setup("fit")
    assert data.vocabulary is not None  # made while the training split was read
    if resumed is not None:
        _check_text(settings.resume, data, resumed)
    for line in data.report():
        log.info(line)
    return data, data.vocabulary


def _check_text(resume: str | None, data: CharDataModule, resumed: Resumed) -> None:
    """Refuse to continue a run on another text.

    Raises:
        UsageError: a split differs; the message says which, and from which fingerprint to which.
    """
    if changed := changed_splits(resumed.fingerprints, data.fingerprints):
        raise UsageError(
            f"resume={resume}: its text has changed: {changed} ({data.corpus.source('train')}); continue it with the "
            "text that it began with, or start a new run"
        )
    assert data.vocabulary is not None
    if resumed.vocabulary.to_plain() != data.vocabulary.to_plain():  # a checkpoint without fingerprints
        raise UsageError(
            f"resume={resume}: {data.corpus.source('train')} has other characters than the text that run was "
            "trained on; continue it with that text"
        )


def build_module(
    task: Task, settings: TrainConfig, config: dict[str, Any], model: nn.Module, data: CharDataModule
) -> TaskModule:
    """Build the Lightning module that trains a model on a task.

    Args:
        task: names the class of the module.
        settings: the validated configuration.
        config: the same configuration as plain containers.
        model: the model to train.
        data: the text; its vocabulary and fingerprints are stored in every checkpoint.
    """
    assert data.vocabulary is not None
    return locate(task.module, "task")(
        model,
        optimizer=factory(config["optimizer"], "optimizer"),
        schedule=factory(config["schedule"], "schedule"),
        regularizer=factory(config["regularizer"], "regularizer"),
        checkpoint_extras=checkpoint_extras(config, data.vocabulary, data.fingerprints),
        seed=settings.seed,
        log_every_steps=config["trainer"]["log_every_steps"],
    )
