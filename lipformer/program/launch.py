"""Whether this process was started in a way in which several can train together: by Lightning, or ``torchrun``."""

import os
from typing import Any

from hydra.conf import HydraConf
from hydra.types import RunMode
from omegaconf import OmegaConf

from lipformer.errors import UsageError
from lipformer.system.ranks import LOCAL_RANK, RANK, WORLD_SIZE, started_from_outside

NEEDED = (RANK, LOCAL_RANK, WORLD_SIZE, "MASTER_ADDR", "MASTER_PORT")
"""What ``torchrun`` sets for each process."""


def refuse_launch(options: Any, hydra: HydraConf) -> None:
    """Refuse a start of several processes that would not find together, or not in one run folder.

    Whether they are as many as the trainer expects is checked when the trainer is built.

    Args:
        options: the group ``trainer`` of the configuration.
        hydra: Hydra's own configuration.

    Raises:
        UsageError: a sweep on several devices, a variable that is missing, or no run folder to share.
    """
    devices = options.devices
    several = options.num_nodes != 1 or (len(devices) != 1 if OmegaConf.is_list(devices) else devices not in (1, "1"))
    if hydra.mode == RunMode.MULTIRUN and several:
        # Each rank would start the whole sweep again.
        what = f"trainer.devices={devices}" if options.num_nodes == 1 else f"trainer.num_nodes={options.num_nodes}"
        raise UsageError(f"{what} does not go with -m: sweep with trainer.devices=1")
    if RANK not in os.environ or not (several or started_from_outside()):
        return
    missing = [name for name in NEEDED if name not in os.environ]
    if missing:
        raise UsageError(
            f"{RANK}={os.environ[RANK]} is set, but {', '.join(missing)} is not: start all processes by torchrun, "
            f"or unset {RANK} to let the first process start the others of its machine"
        )
    if not any(typed.startswith("hydra.run.dir=") for typed in hydra.overrides.hydra):
        raise UsageError(
            f"{RANK}={os.environ[RANK]}: processes that are started one by one share a run folder that is given; "
            "add hydra.run.dir=<folder>"
        )
