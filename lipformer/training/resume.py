"""Continuing a run: its own configuration, and the few things that may change on the way."""

import logging
from pathlib import Path

from hydra.conf import HydraConf
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from lipformer.errors import UsageError
from lipformer.training.checkpoint import find_checkpoint, read_checkpoint

log = logging.getLogger(__name__)

# What a continued run may be given anew: how long and where it trains, where its text and its logs are. All else is
# part of what the checkpoint holds (weights, optimizer state, position in the data) and would be ignored or break it.
FREE_GROUPS = ("trainer", "logger")
FREE_KEYS = ("resume", "data.dir", "data.num_workers", "data.train", "data.valid", "data.test", "data.download")


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
    stored = OmegaConf.create(read_checkpoint(path)["lipformer"]["config"])
    for override in OverridesParser.create().parse_overrides(list(hydra.overrides.task)):
        key = override.key_or_group
        if key.split(".")[0] not in FREE_GROUPS and key not in FREE_KEYS:
            raise UsageError(
                f"{key} cannot change while resume={config.resume} continues a run: its checkpoint holds it; start a "
                f"new run, or leave {key} out"
            )
        OmegaConf.update(stored, key, OmegaConf.select(config, key), force_add=True)
    log.info("continuing %s", Path(path))
    return stored
