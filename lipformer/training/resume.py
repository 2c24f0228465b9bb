"""Continuing a run: its own configuration, and the few things that may change on the way."""

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lipformer.assembly.build import check_targets
from lipformer.assembly.checkpoint import find_checkpoint, read_checkpoint, rebuild_run
from lipformer.config import typed_keys
from lipformer.data.vocabulary import Vocabulary
from lipformer.errors import CheckpointError, UsageError
from lipformer.options.trainer import TrainerOptions
from lipformer.runs import layout
from lipformer.runs.metric_names import named_today
from lipformer.runs.metrics_csv import EPOCH, STEP, read_rows, write_rows
from lipformer.runs.plain_files import read_config
from lipformer.runs.record import is_of_first_version
from lipformer.training.resume_changes import may_change, refuse_changes

log = logging.getLogger(__name__)

# Groups that become objects besides the model's and its corpus.
BUILT_TO_TRAIN = ("optimizer", "schedule", "regularizer", "callbacks", "logger")
# What Lightning and the data module restore, and would fail on with errors of their own.
RESUMABLE = {
    "epoch": int,
    "global_step": int,
    "loops": dict,
    "callbacks": dict,
    "optimizer_states": list,
    "lr_schedulers": list,
    "CharDataModule": dict,
    "pytorch-lightning_version": str,
}


@dataclass(frozen=True)
class Resumed:
    """A run to go on with.

    Attributes:
        path: the checkpoint, from which Lightning restores the state of the training.
        model: rebuilt, with its weights.
        vocabulary: of the text it was trained on.
        step: optimizer steps taken.
        config: its own configuration, with what may change taken from the command line.
    """

    path: Path
    model: Any
    vocabulary: Vocabulary
    step: int
    config: DictConfig


def resume_run(config: DictConfig, hydra: HydraConf) -> Resumed:
    """Read the run that ``resume`` names, once, and rebuild its model.

    Args:
        config: what Hydra composed, with ``resume`` set.
        hydra: Hydra's own configuration: which overrides were typed.

    Raises:
        CheckpointError: there is no checkpoint to continue from.
        UsageError: an override would change what the checkpoint holds, or the training is over.
    """
    path = find_checkpoint(config.resume, "last", key="resume")
    checkpoint = read_checkpoint(path)
    _check_resumable(checkpoint, path)
    stored = checkpoint["lipformer"]["config"]
    try:
        check_targets(stored, config.allow_targets, str(path), BUILT_TO_TRAIN)
    except CheckpointError:
        raise
    except UsageError as error:
        raise CheckpointError(f"{path}: {error}; the file was altered") from error
    except (LookupError, TypeError) as error:
        raise CheckpointError(f"{path}: its configuration lacks {error}; the file was altered") from error
    if "${" in str(stored):  # a resolver could read the environment; what lipformer stores has none left
        raise CheckpointError(f"{path}: its configuration holds an interpolation; the file was altered")
    typed = typed_keys(hydra)
    refuse_changes(config, typed, stored)
    run = rebuild_run(checkpoint, path, allow_targets=config.allow_targets)
    continued = _continued(config, stored, [key for key in typed if may_change(key)], path)
    _check_trainer(continued.trainer)
    _check_room_to_train(checkpoint, continued.trainer, path)
    log.info("continuing %s", path)
    return Resumed(path, run.model, run.vocabulary, run.step, continued)


def _continued(config: DictConfig, stored: Mapping[str, Any], free: list[str], path: Path) -> DictConfig:
    """The stored configuration, with the typed keys that may change; null for those that were removed (``~key``)."""
    continued = copy.deepcopy(config)
    try:
        for key, value in stored.items():
            OmegaConf.update(continued, key, value, merge=False, force_add=True)
    except OmegaConfBaseException as error:
        raise CheckpointError(f"{path}: {str(error).splitlines()[0]}; the file was altered") from error
    for key in free:
        OmegaConf.update(continued, key, OmegaConf.select(config, key), merge=False, force_add=True)
    return continued


def _check_resumable(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Refuse a checkpoint of weights alone, and one that was altered."""
    for key, kind in RESUMABLE.items():
        value = checkpoint.get(key)
        if not isinstance(value, kind) or (kind is not int and not value):
            raise CheckpointError(
                f"{path}: it lacks the {key} of a training, which cannot go on from it; use the {layout.LAST} of a run"
            )


def _check_trainer(options: Mapping[str, Any]) -> None:
    """Check ranges: the stored group has no schema, and here no class would refuse what was typed over it."""
    stated = {option.name for option in TrainerOptions.stated()}
    for name, value, wanted in TrainerOptions.faults({key: options[key] for key in options if key in stated}):
        raise UsageError(f"trainer.{name}={value}: it must be {wanted}")


def _check_room_to_train(checkpoint: Mapping[str, Any], options: Mapping[str, Any], path: Path) -> None:
    epoch = checkpoint["CharDataModule"].get("epoch", 0)
    for key, done in (("step", checkpoint["global_step"]), ("epoch", epoch)):
        limit = options[f"max_{key}s"]
        if limit != -1 and done >= limit:
            raise UsageError(f"resume={path}: it stands at {key} {done} and trainer.max_{key}s={limit}; raise that")


def prepend_metrics(folder: Path, resume_from: Path, step: int) -> None:
    """Put the old run's rows of ``metrics.csv``, up to the checkpoint's step, before those of `folder`.

    Metrics of a run of version 0.1.0 get their names of today.
    """
    home = layout.run_folder_of(resume_from)
    old, new = home / layout.METRICS_CSV, folder / layout.METRICS_CSV
    if not old.is_file():
        return
    name = named_today if is_of_first_version(read_config(home / layout.CONFIG)) else str
    before = [{name(key): cell for key, cell in row.items()} for row in read_rows(old) if int(row[STEP]) < step]
    rows = before + read_rows(new)
    names = {name for row in rows for name in row} - {EPOCH, STEP}
    write_rows(new, [EPOCH, STEP, *sorted(names)], rows)
