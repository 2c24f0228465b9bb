"""One Weights & Biases run for each training run: named, and finished with the run's exit code."""

import json
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.loggers.logger import rank_zero_experiment
from pytorch_lightning.utilities import rank_zero_only

from lipformer.errors import UsageError
from lipformer.run_folder import Outcome

log = logging.getLogger(__name__)

# What $WANDB_MODE may be; dryrun and run are wandb's old names.
MODES = {"online": "online", "offline": "offline", "disabled": "disabled", "dryrun": "offline", "run": "online"}
LOCAL_TIMEOUT = 90.0  # seconds for wandb's own process to start, on a busy machine too
LONGEST_NAME, LONGEST_TAG = 128, 64  # characters that wandb takes
NOT_THE_MODEL = ("logger", "trainer")  # overrides that say where and how to run, not what
STEP = "trainer/global_step"  # the base class logs it with every metric; wandb's own step counts calls of log
BEST_IS_LOWEST = ("val/nats_per_char", "val/bits_per_char")


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
    wandb.setup(wandb.Settings(silent=True, mode="online"))
    try:
        return wandb.login(prompt=False, verify=False)
    except wandb.Error as error:
        raise UsageError(f"wandb: {_first_line(error)}; correct the key, or take logger.mode=offline") from error


def describe_run(config: dict[str, Any]) -> dict[str, Any]:
    """Return name, group, job type and tags of the wandb run: all that Hydra knows of this job."""
    overrides: list[str] = []
    group = None
    if HydraConfig.initialized():
        hydra = HydraConfig.get()
        overrides = [typed for typed in hydra.overrides.task if not typed.lstrip("+~").startswith(NOT_THE_MODEL)]
        if hydra.mode == RunMode.MULTIRUN:
            group = Path(hydra.sweep.dir).name
    return {
        "name": (" ".join(overrides) or config["name"])[:LONGEST_NAME],
        "group": group,
        "job_type": "train",
        "tags": [typed for typed in overrides if len(typed) <= LONGEST_TAG],
    }


class WandbRunLogger(WandbLogger):
    """Logs to a wandb run of its own, begun when the trainer first asks for it, on rank zero alone.

    Differs from its base in four things: it never takes over a run that another job left open; a server that does
    not answer turns the run offline instead of ending the training; `finish` passes the exit code on; and nothing
    process-wide changes (the base's ``offline=True`` sets an environment variable for all later jobs).

    Args:
        folder: the run folder; wandb's files go to ``<folder>/wandb``.
        config: the configuration as plain containers.
        online: whether to send it to the server as it goes.
        project: wandb project.
        entity: user or team; None for the account's default.
        init_timeout: seconds to wait for the server before the run turns offline.
        finish_timeout: seconds to wait for the last uploads.
    """

    def __init__(
        self,
        *,
        folder: Path,
        config: dict[str, Any],
        online: bool,
        project: str,
        entity: str | None,
        init_timeout: float,
        finish_timeout: float,
    ):
        super().__init__(save_dir=folder, project=project)
        self._folder = folder
        self._config = config
        self._online = online
        self._entity = entity
        self._init_timeout = init_timeout
        self._finish_timeout = finish_timeout

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The wandb run; begun at the first call."""
        if self._experiment is None:
            self._hooks = sys.exit, sys.excepthook  # wandb replaces both and never puts them back
            self._experiment = self._begin()
            self._experiment.define_metric(STEP)
            self._experiment.define_metric("*", step_metric=STEP, step_sync=True)
            for metric in BEST_IS_LOWEST:
                self._experiment.define_metric(metric, step_metric=STEP, step_sync=True, summary="min")
        return self._experiment

    def _begin(self) -> Any:
        import wandb

        if self._online:
            try:
                run = self._init()
            except (wandb.Error, TimeoutError) as error:
                self._online = False
                log.warning("wandb: offline, as the server did not take the run: %s", _first_line(error))
                for attempt in (self._folder / "wandb").glob("run-*"):  # `wandb sync` would upload its empty shell
                    shutil.rmtree(attempt, ignore_errors=True)
            else:
                (self._folder / "wandb.json").write_text(json.dumps({"id": run.id, "url": run.url}) + "\n")
                log.info("wandb: %s", run.url)
                return run
        run = self._init()
        log.info("wandb: upload later with: wandb sync %s", Path(run.dir).parent)
        return run

    def _init(self) -> Any:
        import wandb

        earlier = earlier_run_id(self._config["resume"]) if self._online else None
        return wandb.init(
            project=self._project,
            entity=self._entity,
            dir=self._folder,
            config=self._config,
            mode="online" if self._online else "offline",
            reinit="finish_previous",
            settings=wandb.Settings(
                silent=True,  # its messages would break into the progress bar; ours say where the run is
                console="off",  # train.log has the output, and capture would record every frame of the bar
                init_timeout=self._init_timeout if self._online else LOCAL_TIMEOUT,
                finish_timeout=self._finish_timeout,
                finish_timeout_raises=True,
            ),
            # A continued run keeps the name it has, not the name of the command that continues it.
            **({"id": earlier, "resume": "allow"} if earlier else describe_run(self._config)),
        )

    @rank_zero_only
    def finish(self, outcome: Outcome) -> None:
        """End the wandb run as `outcome` says; trouble with it is logged, for the training itself has ended."""
        if self._experiment is None:
            return
        try:
            self._experiment.summary.update({"status": outcome.status, "reason": outcome.reason})
            self._experiment.finish(exit_code=outcome.exit_code)
        except Exception as error:
            where = Path(self._experiment.dir).parent
            log.warning("wandb: not all was uploaded (%s); try: wandb sync %s", _first_line(error), where)
        finally:
            sys.exit, sys.excepthook = self._hooks


def earlier_run_id(resume: str | None) -> str | None:
    """Return the id of the online wandb run that `resume`, a run folder or a checkpoint in one, belongs to."""
    if resume is None:
        return None
    path = Path(resume).absolute()
    note = (path if path.is_dir() else path.parent.parent) / "wandb.json"
    return json.loads(note.read_text())["id"] if note.is_file() else None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
