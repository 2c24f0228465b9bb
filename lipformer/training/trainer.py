"""Building Lightning's trainer from the group ``trainer`` of the configuration."""

import os
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.environments import LightningEnvironment

from lipformer.errors import UsageError
from lipformer.system.ranks import LOCAL_RANK, RANK, WORLD_SIZE, rank
from lipformer.training.checkpoint_io import AtomicCheckpointIO
from lipformer.training.loggers.metrics_csv import MetricsCsv


def build_trainer(
    options: dict[str, Any], folder: Path, callbacks: list[pl.Callback], loggers: list[Any]
) -> pl.Trainer:
    """Build the trainer of a run.

    Args:
        options: the group ``trainer`` of the configuration.
        folder: the run folder.
        callbacks: the callbacks, in the order in which they are called.
        loggers: the loggers besides that of ``metrics.csv``.

    Raises:
        UsageError: the machine lacks the accelerator or the devices, float16 is asked for on the CPU, or the processes
            that were started are not those that the options ask for.
    """
    # Lightning's auto and gpu also mean Apple's GPU, which has no float64 for the sums of nats.
    accelerators = {"cpu": "cpu", "gpu": "cuda", "auto": "cuda" if torch.cuda.is_available() else "cpu"}
    accelerator = accelerators[options["accelerator"]]
    if accelerator == "cpu" and options["precision"] == "16-mixed":  # Lightning would silently take bfloat16
        raise UsageError("trainer.precision=16-mixed: the CPU does not train in float16; take bf16-mixed")
    alone = devices_here(options) == options["num_nodes"] == 1  # whatever a cluster's environment says
    try:
        trainer = pl.Trainer(
            accelerator=accelerator,
            devices=options["devices"],
            num_nodes=options["num_nodes"],
            strategy=options["strategy"],
            precision=options["precision"],
            max_steps=options["max_steps"],
            max_epochs=options["max_epochs"],
            min_epochs=0,  # so that the last step may be in the middle of an epoch
            gradient_clip_val=options["gradient_clip"],
            val_check_interval=options["val_every_steps"],
            check_val_every_n_epoch=None,
            log_every_n_steps=options["log_every_steps"],
            deterministic=accelerator == "cpu" if options["deterministic"] is None else options["deterministic"],
            logger=[MetricsCsv(folder, name="", version=""), *loggers],
            callbacks=callbacks,
            default_root_dir=folder,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,  # the data module divides the batches among the ranks itself
            enable_model_summary=False,
            enable_progress_bar=False,  # callbacks/progress.py shows it
            plugins=[AtomicCheckpointIO(), *([LightningEnvironment()] if alone else [])],
        )
    except (pl.utilities.exceptions.MisconfigurationException, TypeError, ValueError) as error:
        raise UsageError(f"trainer: {str(error).splitlines()[0]}") from error
    _check_ranks(trainer, options)
    return trainer


def devices_here(options: dict[str, Any]) -> int:
    """Return the number of devices, and processes, of a training on this machine.

    Args:
        options: the group ``trainer`` of the configuration.
    """
    devices = options["devices"]
    if isinstance(devices, list):
        return len(devices)
    if devices in ("auto", -1, "-1"):
        return torch.cuda.device_count() if options["accelerator"] != "cpu" and torch.cuda.is_available() else 1
    return int(devices)


def _check_ranks(trainer: pl.Trainer, options: dict[str, Any]) -> None:
    """Refuse a process whose place among the others is not the one that the run folder was opened for."""
    world = int(os.environ.get(WORLD_SIZE, trainer.world_size))
    if (rank(), world) != (trainer.global_rank, trainer.world_size):
        raise UsageError(
            f"this process was started as number {rank()} of {world} ({RANK}, {LOCAL_RANK}, {WORLD_SIZE}), but "
            f"trainer.devices={options['devices']} trainer.num_nodes={options['num_nodes']} makes it number "
            f"{trainer.global_rank} of {trainer.world_size}: start as many processes on each machine as trainer.devices"
        )
