"""What is decided before a wandb run begins: whether it is online, its name and its tags.

Nothing here prompts the user or needs the network.
"""

import contextlib
import logging
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from lipformer.errors import UsageError

log = logging.getLogger(__name__)

# Values of $WANDB_MODE, and what they mean; dryrun and run are wandb's old names.
MODES = {"online": "online", "offline": "offline", "disabled": "disabled", "dryrun": "offline", "run": "online"}
REPORTS = "WANDB_ERROR_REPORTING"
LONGEST_NAME, LONGEST_TAG = 128, 64  # in characters; wandb refuses longer ones
NOT_THE_MODEL = ("logger", "trainer")  # groups that say where and how a model is trained


def resolve_mode(mode: str) -> str:
    """Return the mode of a wandb run, ``online``, ``offline`` or ``disabled``.

    Args:
        mode: one of these, or ``auto``: the value of $WANDB_MODE if it is set, else online if wandb finds credentials.

    Raises:
        UsageError: the value of $WANDB_MODE is unknown, or the run has to be online and there are no credentials.
    """
    variable = os.environ.get("WANDB_MODE")
    if variable is not None and variable not in MODES:  # always checked, since wandb reads it in any case
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
        UsageError: the key or token is malformed.
    """
    import wandb

    # The mode is set for the whole library: with WANDB_MODE=offline, login would not look for credentials.
    try:
        with no_reports_to_wandb():
            wandb.setup(wandb.Settings(silent=True, mode="online"))
            return wandb.login(prompt=False, verify=False)
    except wandb.Error as error:
        raise UsageError(f"wandb: {first_line(error)}; correct the key, or take logger.mode=offline") from error


def describe_run(config: dict[str, Any]) -> dict[str, Any]:
    """Return the name, group, job type and tags of the wandb run, from the overrides and the sweep of this job.

    A job of a sweep gets an id as well: $WANDB_RUN_ID would make one run of all jobs.
    """
    overrides: list[str] = []
    group, job_type, own = None, "train", {}
    if HydraConfig.initialized():
        hydra = HydraConfig.get()
        overrides = [typed for typed in hydra.overrides.task if not typed.lstrip("+~").startswith(NOT_THE_MODEL)]
        if hydra.mode == RunMode.MULTIRUN:
            group, job_type = Path(hydra.sweep.dir).name, "sweep"
            own = {"id": secrets.token_hex(4), "resume": "never"}
    return {
        "name": (" ".join(overrides) or config["name"])[:LONGEST_NAME],
        "group": group,
        "job_type": job_type,
        "tags": [typed for typed in overrides if len(typed) <= LONGEST_TAG],
        **own,
    }


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or else the name of its class."""
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextlib.contextmanager
def no_reports_to_wandb() -> Iterator[None]:
    """Keep wandb from sending reports of its own errors, unless $WANDB_ERROR_REPORTING is set.

    It sends them when the process ends, which a server that does not answer would delay by half a minute.
    """
    asked = REPORTS in os.environ
    os.environ.setdefault(REPORTS, "false")
    try:
        yield
    finally:
        if not asked:
            del os.environ[REPORTS]
