"""Continuing a run from its last checkpoint, with the configuration that it was started with."""

import copy
import logging
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
from lipformer.runs.metric_names import VALID, named_today
from lipformer.runs.metrics_csv import EPOCH, LARGEST, STEP, read_rows, write_rows
from lipformer.runs.outcome import read_outcome
from lipformer.runs.plain_files import read_config
from lipformer.runs.record import has_old_layer_names
from lipformer.system.atomic import copy_whole
from lipformer.system.reading import open_regular
from lipformer.training.loop_progress import was_validated
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
        ended: whether it has taken its last step, and was stopped before all of its end was written.
        validated: whether its weights were validated before it stopped, if they were to be.
    """

    path: Path
    model: Any
    vocabulary: Vocabulary
    step: int
    config: DictConfig
    fingerprints: dict[str, Fingerprint]
    ended: bool
    validated: bool


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
    end = _end_reached(checkpoint, continued.trainer)
    if end and not _is_to_be_closed(stored["trainer"], continued.trainer, path):
        raise UsageError(f"resume={path}: {end}; raise that")
    log.info("continuing %s", path)
    state = {"ended": bool(end), "validated": was_validated(checkpoint)}
    return Resumed(path, run.model, run.vocabulary, run.step, continued, run.fingerprints, **state)


def continue_in_place(config: DictConfig, hydra: HydraConf, folder: Path) -> Resumed | None:
    """Return the run in `folder`, to be continued there; None if it left no checkpoint that training can go on from.

    Args:
        config: the configuration that Hydra composed.
        hydra: Hydra's own configuration, which lists the overrides that were typed.
        folder: the run folder, which this process has locked.

    Raises:
        CheckpointError: a checkpoint was altered.
        UsageError: an override would change something that the checkpoint fixes.
    """
    last, previous = (folder / layout.CHECKPOINTS / name for name in (layout.LAST, layout.PREVIOUS))
    for path in (last, previous):
        _refuse_unreadable(path)
    if not is_whole(last):
        if not is_whole(previous):
            log.warning("%s: no whole checkpoint is left; the job begins again", folder)
            return None
        copy_whole(previous, last)  # a damaged `last` must not become `previous` when the next one is saved
        log.warning("%s was missing or damaged: %s is in its place", last, previous)
    resumed = resume_run(cast(DictConfig, OmegaConf.merge(config, {"resume": str(last)})), hydra)
    resumed.config.resume = config.resume  # which names the run that the job itself continued, if any
    return resumed


def _refuse_unreadable(path: Path) -> None:
    """Refuse a checkpoint that the system cannot read at present: it is not damaged, and must not be replaced."""
    try:
        if path.exists():
            with path.open("rb") as file:
                file.read(1)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


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


def _end_reached(checkpoint: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Return which limit was reached, ``trainer.max_steps`` or ``trainer.max_epochs``, as text; empty if none."""
    epoch = checkpoint["CharDataModule"].get("epoch", 0)
    for key, done in (("step", checkpoint["global_step"]), ("epoch", epoch)):
        limit = options[f"max_{key}s"]
        if limit != -1 and done >= limit:
            return f"it stands at {key} {done} and trainer.max_{key}s={limit}"
    return ""


def _is_to_be_closed(planned: Mapping[str, Any], options: Mapping[str, Any], path: Path) -> bool:
    """Return whether a run may be continued after its last step, since it was stopped before its end was recorded.

    Args:
        planned: the options of its trainer.
        options: those that it is to be continued with.
        path: its checkpoint.
    """
    if any(options[key] != planned.get(key) for key in ("max_steps", "max_epochs")):
        return False
    outcome = read_outcome(layout.run_folder_of(path))
    return outcome is not None and outcome.exit_code != 0 and outcome.status != "diverged"


def carry_over(resumed: Resumed, folder: Path) -> None:
    """Put into `folder` what the run that is continued has written and will not write again.

    These are its rows of ``metrics.csv`` and, if no step is left, its last checkpoint and its certificate.
    """
    carry_metrics(folder, resumed.path, resumed.step, validated=resumed.validated)
    home = layout.run_folder_of(resumed.path)
    if not resumed.ended or home == folder.absolute():
        return
    (folder / layout.CHECKPOINTS).mkdir(exist_ok=True)
    copies = {
        resumed.path: folder / layout.CHECKPOINTS / layout.LAST,
        home / layout.CERTIFICATE: folder / layout.CERTIFICATE,
    }
    for file, new in copies.items():
        if file.is_file():
            copy_whole(file, new)


def carry_metrics(folder: Path, resume_from: Path, step: int, *, validated: bool) -> None:
    """Put the rows of ``metrics.csv`` of the run that is continued, up to the checkpoint's step, into `folder`.

    That may be the same folder; rows after the checkpoint are then removed, since those steps are taken once more.
    Metrics of an older run get their names of today.

    Args:
        folder: the run folder.
        resume_from: the checkpoint.
        step: its number of steps.
        validated: whether its weights were validated; if not, a row of that validation is left out: it is made again.
    """
    home = layout.run_folder_of(resume_from)
    if not (home / layout.METRICS_CSV).is_file():
        return
    try:
        open_regular(home / layout.METRICS_CSV, LARGEST).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"{home / layout.METRICS_CSV} cannot be read ({reason}): its rows would be lost") from error
    name = named_today if has_old_layer_names(read_config(home / layout.CONFIG)) else str
    before = (row for row in read_rows(home / layout.METRICS_CSV) if _stays(row, step, validated))
    rows = [{name(key): cell for key, cell in row.items()} for row in before]
    names = {EPOCH, STEP}.union(*rows)
    write_rows(folder / layout.METRICS_CSV, sorted(names), rows)  # in the order in which the logger adds to it


def _stays(row: Mapping[str, str], step: int, validated: bool) -> bool:
    """Return whether a row is of a step before `step`, and of no validation of that state unless it was `validated`.

    A row without a step does not stay.
    """
    try:
        of = int(row[STEP])
    except (KeyError, ValueError):
        return False
    of_validation = any(cell for name, cell in row.items() if name.startswith(f"{VALID}/"))
    return of < step and (validated or of < step - 1 or not of_validation)
