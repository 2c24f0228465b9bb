"""Continuing a run from its last checkpoint, with the configuration that it was started with."""

import copy
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hydra.conf import HydraConf
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lipformer.assembly.build import check_targets
from lipformer.assembly.checkpoint import find_checkpoint, is_whole, read_checkpoint, rebuild_run
from lipformer.config import typed_keys
from lipformer.data.fingerprint import Fingerprint
from lipformer.data.vocabulary import Vocabulary
from lipformer.errors import CheckpointError, UsageError
from lipformer.options.trainer import TrainerOptions
from lipformer.runs import layout
from lipformer.runs.metric_names import named_today
from lipformer.runs.metrics_csv import EPOCH, STEP, read_rows, write_rows
from lipformer.runs.plain_files import read_config
from lipformer.runs.record import has_old_layer_names
from lipformer.system.atomic import replacing
from lipformer.training.resume_changes import may_change, refuse_changes

log = logging.getLogger(__name__)

# Groups of the configuration that training builds objects from, besides those of the model and the corpus.
BUILT_TO_TRAIN = ("optimizer", "schedule", "regularizer", "callbacks", "logger")
# Keys that Lightning and the data module restore, with their types; without them they would fail in ways of their own.
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


class NothingLeft(UsageError):
    """The training to be continued has reached its end."""


@dataclass(frozen=True)
class Resumed:
    """A run that is to be continued.

    Attributes:
        path: the checkpoint, from which Lightning restores the state of the training.
        model: the model, rebuilt with its weights.
        vocabulary: the vocabulary of the text that it was trained on.
        step: number of optimizer steps taken so far.
        config: the run's own configuration; keys that may change have the values of the command line.
        fingerprints: those of the text that it was trained and validated on, as far as the checkpoint has them.
    """

    path: Path
    model: Any
    vocabulary: Vocabulary
    step: int
    config: DictConfig
    fingerprints: dict[str, Fingerprint]


def resume_run(config: DictConfig, hydra: HydraConf) -> Resumed:
    """Read the checkpoint of the run that ``resume`` names, and rebuild the run's model.

    Args:
        config: the configuration that Hydra composed, with ``resume`` set.
        hydra: Hydra's own configuration, which lists the overrides that were typed.

    Raises:
        CheckpointError: there is no checkpoint that can be continued.
        UsageError: an override would change something that the checkpoint fixes, or the training has reached its end.
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
    if "${" in str(stored):  # a resolver could read the environment; lipformer stores resolved values only
        raise CheckpointError(f"{path}: its configuration holds an interpolation; the file was altered")
    typed = typed_keys(hydra)
    refuse_changes(config, typed, stored)
    run = rebuild_run(checkpoint, path, allow_targets=config.allow_targets)
    continued = _continued(config, stored, [key for key in typed if may_change(key)], path)
    _check_trainer(continued.trainer)
    _check_room_to_train(checkpoint, continued.trainer, path)
    log.info("continuing %s", path)
    return Resumed(path, run.model, run.vocabulary, run.step, continued, run.fingerprints)


def continue_in_place(config: DictConfig, hydra: HydraConf, folder: Path) -> Resumed | None:
    """Return the run in `folder`, to be continued there; None if it left no checkpoint that training can go on from.

    A run that was killed after its last step has to repeat those since the checkpoint before, or all of them: what it
    writes at its end is not in a checkpoint.

    Args:
        config: the configuration that Hydra composed.
        hydra: Hydra's own configuration, which lists the overrides that were typed.
        folder: the run folder, which this process has locked.

    Raises:
        CheckpointError: a checkpoint was altered.
        UsageError: an override would change something that the checkpoint fixes.
    """
    last, previous = (folder / layout.CHECKPOINTS / name for name in (layout.LAST, layout.PREVIOUS))
    if not is_whole(last) and is_whole(previous):
        # A damaged `last` must not become `previous` when the next one is saved.
        with previous.open("rb") as original, replacing(last) as copy:
            shutil.copyfileobj(original, copy)
        log.warning("%s was missing or damaged: %s is in its place", last, previous)
    for path in (last, previous):
        if is_whole(path):
            named = OmegaConf.merge(config, {"resume": str(path)})
            try:
                resumed = resume_run(cast(DictConfig, named), hydra)
            except NothingLeft:
                continue
            resumed.config.resume = config.resume  # which names the run that the job itself continued, if any
            return resumed
    return None


def _continued(config: DictConfig, stored: Mapping[str, Any], free: list[str], path: Path) -> DictConfig:
    """Return the stored configuration with the typed values of the keys in `free`, None for a key removed by ``~key``.

    Args:
        config: the configuration that Hydra composed.
        stored: the configuration of the run.
        free: the typed keys that may change.
        path: the checkpoint, for error messages.
    """
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
    """Refuse a checkpoint that holds no training state, such as one of weights alone."""
    for key, kind in RESUMABLE.items():
        value = checkpoint.get(key)
        if not isinstance(value, kind) or (kind is not int and not value):
            raise CheckpointError(
                f"{path}: it lacks the {key} of a training, which cannot go on from it; use the {layout.LAST} of a run"
            )


def _check_trainer(options: Mapping[str, Any]) -> None:
    """Check the ranges of the group ``trainer``, which Hydra has not checked against the stored configuration."""
    stated = {option.name for option in TrainerOptions.stated()}
    for name, value, wanted in TrainerOptions.faults({key: options[key] for key in options if key in stated}):
        raise UsageError(f"trainer.{name}={value}: it must be {wanted}")


def _check_room_to_train(checkpoint: Mapping[str, Any], options: Mapping[str, Any], path: Path) -> None:
    """Refuse a training that has already reached ``trainer.max_steps`` or ``trainer.max_epochs``."""
    epoch = checkpoint["CharDataModule"].get("epoch", 0)
    for key, done in (("step", checkpoint["global_step"]), ("epoch", epoch)):
        limit = options[f"max_{key}s"]
        if limit != -1 and done >= limit:
            raise NothingLeft(f"resume={path}: it stands at {key} {done} and trainer.max_{key}s={limit}; raise that")


def carry_metrics(folder: Path, resume_from: Path, step: int) -> None:
    """Put the rows of ``metrics.csv`` of the run that is continued, up to the checkpoint's step, into `folder`.

    That may be the same folder; rows after the checkpoint are then removed, since those steps are taken once more.
    Metrics of an older run get their names of today.
    """
    home = layout.run_folder_of(resume_from)
    if not (home / layout.METRICS_CSV).is_file():
        return
    name = named_today if has_old_layer_names(read_config(home / layout.CONFIG)) else str
    before = (row for row in read_rows(home / layout.METRICS_CSV) if _precedes(row, step))
    rows = [{name(key): cell for key, cell in row.items()} for row in before]
    names = {EPOCH, STEP}.union(*rows)
    write_rows(folder / layout.METRICS_CSV, sorted(names), rows)  # in the order in which the logger adds to it


def _precedes(row: Mapping[str, str], step: int) -> bool:
    """Return whether a row is of a step before `step`; one without a step is left out."""
    try:
        return int(row[STEP]) < step
    except (KeyError, ValueError):
        return False
