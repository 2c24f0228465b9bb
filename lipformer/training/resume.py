"""Continuing a run: its own configuration, and the few things that may change on the way."""

import copy
import csv
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lipformer.errors import CheckpointError, UsageError
from lipformer.training.build import check_targets
from lipformer.training.checkpoint import find_checkpoint, load_run, read_checkpoint

log = logging.getLogger(__name__)

# Groups that become objects besides the model's and its corpus.
BUILT_TO_TRAIN = ("optimizer", "schedule", "regularizer", "callbacks", "logger")
# What a continued run may be given anew: how long and where it trains, where its text and its logs are. All else is
# part of what the checkpoint holds (weights, optimizer state, position in the data) and would be ignored or break it.
FREE_GROUPS = ("trainer", "callbacks", "logger")
FREE_KEYS = (
    "name",
    "resume",
    "allow_targets",
    "data.dir",
    "data.num_workers",
    "data.train",
    "data.valid",
    "data.test",
    "data.download",
)


# What Lightning and the data module restore, and would fail on with errors of their own.
RESUMABLE = {
    "epoch": int,
    "global_step": int,
    "loops": dict,
    "callbacks": dict,
    "optimizer_states": list,
    "lr_schedulers": list,
    "CharDataModule": dict,
}


def resumed_config(config: DictConfig, hydra: HydraConf) -> DictConfig:
    """Return the configuration of the run that ``resume`` names, with the command line's changes to it.

    Args:
        config: what Hydra composed, with ``resume`` set.
        hydra: Hydra's own configuration: which overrides were typed.

    Returns:
        The stored configuration, with the overridden keys of `FREE_GROUPS` and `FREE_KEYS` taken from `config`.

    Raises:
        CheckpointError: there is no checkpoint to continue from.
        UsageError: an override would change what the checkpoint holds.
    """
    path = find_checkpoint(config.resume, "last")
    checkpoint = read_checkpoint(path)
    _check_resumable(checkpoint, path)
    stored = checkpoint["lipformer"]["config"]
    try:
        check_targets(stored, config.allow_targets, str(path), BUILT_TO_TRAIN)
    except (LookupError, TypeError) as error:
        raise CheckpointError(f"{path}: its configuration lacks {error}; the file was altered") from error
    if "${" in str(stored):  # a resolver could read the environment; what lipformer stores has none left
        raise CheckpointError(f"{path}: its configuration holds an interpolation; the file was altered")
    load_run(path, allow_targets=config.allow_targets)  # refuses parts that do not fit together
    overrides = OverridesParser.create().parse_overrides(list(hydra.overrides.task))
    typed = [override.key_or_group for override in overrides]
    left_out = {override.key_or_group for override in overrides if override.is_delete()}
    if config.data._target_ == stored["data"]["_target_"]:
        typed = [key for key in typed if key != "data"]  # the run's own corpus, named so that its keys can be typed
    for key in typed:
        if key.split(".")[0] not in FREE_GROUPS and key not in FREE_KEYS:
            raise UsageError(
                f"{key} cannot change while resume={config.resume} continues a run, whose checkpoint holds it: leave "
                f"{key} out, or start a new run"
            )
    continued = copy.deepcopy(config)
    try:
        for key, value in stored.items():
            OmegaConf.update(continued, key, value, merge=False, force_add=True)
    except OmegaConfBaseException as error:
        raise CheckpointError(f"{path}: {str(error).splitlines()[0]}; the file was altered") from error
    for key in typed:
        value = None if key in left_out else OmegaConf.select(config, key)
        OmegaConf.update(continued, key, value, merge=False, force_add=True)
    log.info("continuing %s", path)
    return continued


def _check_resumable(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Refuse a checkpoint of weights alone, and one that was altered."""
    for key, kind in RESUMABLE.items():
        value = checkpoint.get(key)
        if not isinstance(value, kind) or (kind is not int and not value):
            raise CheckpointError(
                f"{path}: it lacks the {key} of a training, which cannot go on from it; use the last.ckpt of a run"
            )


def prepend_metrics(folder: Path, resume_from: Path, step: int) -> None:
    """Put the old run's rows of ``metrics.csv``, up to the checkpoint's step, before those of `folder`."""
    old, new = resume_from.absolute().parent.parent / "metrics.csv", folder / "metrics.csv"
    if not old.is_file():
        return
    before = [row for row in _rows(old) if int(row["step"]) < step]
    rows = before + (_rows(new) if new.is_file() else [])
    names = {name for row in rows for name in row} - {"epoch", "step"}
    with new.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["epoch", "step", *sorted(names)])
        writer.writeheader()
        writer.writerows(rows)


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:  # without the row in whose middle a process was killed
        return [row for row in csv.DictReader(lines) if row.get("step") and None not in row.values()]
