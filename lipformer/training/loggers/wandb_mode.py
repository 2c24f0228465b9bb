"""What a wandb run begins with: online or offline, found out without a prompt or the network, its name and its tags."""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from lipformer.errors import UsageError

log = logging.getLogger(__name__)

# What $WANDB_MODE may be; dryrun and run are wandb's old names.
MODES = {"online": "online", "offline": "offline", "disabled": "disabled", "dryrun": "offline", "run": "online"}
REPORTS = "WANDB_ERROR_REPORTING"
LONGEST_NAME, LONGEST_TAG = 128, 64  # characters that wandb takes
NOT_THE_MODEL = ("logger", "trainer")  # overrides that say where and how to run, not what


def resolve_mode(mode: str) -> str:
    """Return ``online``, ``offline`` or ``disabled``, without a prompt and without the network.

    Args:
        mode: one of these, or ``auto``: $WANDB_MODE where it is set, else online if wandb finds credentials.

    Raises:
        UsageError: $WANDB_MODE is unknown, or the run must be online and there are no credentials.
    """
    variable = os.environ.get("WANDB_MODE")
    if variable is not None and variable not in MODES:  # checked always: wandb reads it whatever we pass
        raise UsageError(f"WANDB_MODE={variable}: it must be online, offline or disabled; or unset it")
    if variable is not None and mode == "auto":
        mode = MODES[variable]
        log.info("wandb: %s, from WANDB_MODE=%s", mode, variable)
    elif variable is not None and mode != MODES[variable]:
        log.info("wandb: %s, from logger.mode, which goes before WANDB_MODE=%s", mode, variable)
    if mode in ("offline", "disabled") or has_credentials():
        return "online" if mode == "auto" else mode
    if mode == "online":
        raise UsageError("logger.mode=online: no API key; run `wandb login`, or take logger.mode=offline")
    log.info("wandb: offline, for want of an API key (`wandb login`)")
    return "offline"


def has_credentials() -> bool:
    """Return whether wandb finds an API key or identity token for its server.

    Raises:
        UsageError: what it finds is malformed.
    """
    import wandb

    # Settings of the whole library, not of a run: login refuses to look where $WANDB_MODE says offline.
    try:
        with no_reports_to_wandb():
            wandb.setup(wandb.Settings(silent=True, mode="online"))
            return wandb.login(prompt=False, verify=False)
    except wandb.Error as error:
        raise UsageError(f"wandb: {first_line(error)}; correct the key, or take logger.mode=offline") from error


def describe_run(config: dict[str, Any]) -> dict[str, Any]:
    """Return name, group, job type and tags of the wandb run: all that Hydra knows of this job."""
    overrides: list[str] = []
    group, job_type = None, "train"
    if HydraConfig.initialized():
        hydra = HydraConfig.get()
        overrides = [typed for typed in hydra.overrides.task if not typed.lstrip("+~").startswith(NOT_THE_MODEL)]
        if hydra.mode == RunMode.MULTIRUN:
            group, job_type = Path(hydra.sweep.dir).name, "sweep"
    return {
        "name": (" ".join(overrides) or config["name"])[:LONGEST_NAME],
        "group": group,
        "job_type": job_type,
        "tags": [typed for typed in overrides if len(typed) <= LONGEST_TAG],
    }


def first_line(error: BaseException) -> str:
    """Return what an exception says, as far as it fits a line of the log."""
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextlib.contextmanager
def no_reports_to_wandb() -> Iterator[None]:
    """Keep wandb from reporting home about itself, where $WANDB_ERROR_REPORTING does not say otherwise.

    It sends them when the process ends, and a server that does not answer would hold it up for half a minute.
    """
    asked = REPORTS in os.environ
    os.environ.setdefault(REPORTS, "false")
    try:
        yield
    finally:
        if not asked:
            del os.environ[REPORTS]
