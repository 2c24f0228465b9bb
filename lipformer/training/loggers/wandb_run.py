"""The logger of a Weights & Biases run: each training has one, which ends with the exit code of the training."""

import contextlib
import json
import logging
import math
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.loggers.logger import rank_zero_experiment
from pytorch_lightning.utilities import rank_zero_only

from lipformer.runs import layout, quantities
from lipformer.runs.metric_names import TOKENS, VALID, metric_name
from lipformer.runs.outcome import Outcome
from lipformer.runs.plain_files import read_json
from lipformer.system.atomic import replace_text
from lipformer.tasks import Task, task_of
from lipformer.training.loggers.wandb_mode import describe_run, first_line, no_reports_to_wandb

log = logging.getLogger(__name__)

LOCAL_TIMEOUT = 90.0  # seconds in which wandb's own process has to start, enough for a busy machine
RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""The ids of runs of wandb, which become part of names of files and addresses."""
STEP = "trainer/global_step"  # logged by the base class with every metric; wandb's own step counts the calls of `log`


class WandbRunLogger(WandbLogger):
    """Logs to a wandb run of its own, which begins when the trainer first asks for it, on rank zero alone.

    It differs from its base class in five respects. It never continues a run that another job left open. If the server
    does not answer, the run goes on offline; no trouble with wandb ends the training. Metrics are drawn over the tokens
    seen, and the summary of some is their extreme. `finish` passes on the exit code. And it changes nothing for the
    whole process, while the base class with ``offline=True`` sets an environment variable for all later jobs.

    Args:
        folder: the run folder; wandb writes its files to ``<folder>/wandb``.
        config: the configuration as plain containers.
        online: whether the metrics are sent to the server during the training.
        project: the wandb project.
        entity: the user or team that owns the project; None for the account's default.
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
        self._extremes = extremes(task_of(config))
        self._broken = False

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The wandb run, which begins at the first call."""
        if self._experiment is None:
            self._hooks = sys.exit, sys.excepthook  # wandb replaces both and never restores them
            with no_reports_to_wandb():
                self._experiment = self._begin()
            self._experiment.define_metric(STEP)
            self._experiment.define_metric(TOKENS)
            # With `step_sync`, a row without tokens has those of the row before.
            self._experiment.define_metric("*", step_metric=TOKENS, step_sync=True)
            for metric, extreme in self._extremes.items():
                self._experiment.define_metric(metric, step_metric=TOKENS, step_sync=True, summary=extreme)
        return self._experiment

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log one row of metrics; only the first failure is a warning, as ``metrics.csv`` has all rows.

        Args:
            metrics: values by name. A nan among the `extremes` is left out: it would stay the extreme for good.
            step: the number of optimizer steps so far.
        """
        _ = self.experiment  # a run that cannot even begin is an error
        row = {name: value for name, value in metrics.items() if not (name in self._extremes and math.isnan(value))}
        try:
            super().log_metrics(row, step)
        except Exception as error:
            if not self._broken:
                log.warning("wandb: rows are being lost (%s); %s has them all", first_line(error), layout.METRICS_CSV)
            self._broken = True

    @rank_zero_only
    def log_samples(self, sentences: Sequence[str], step: int, tokens: int) -> None:
        """Log generated sentences as the table ``samples`` with the columns step, tokens, number and sentence."""
        import wandb

        rows = [[step, tokens, number, sentence] for number, sentence in enumerate(sentences, start=1)]
        table = wandb.Table(columns=["step", "tokens", "number", "sentence"], data=rows)
        self.experiment.log({"samples": table, TOKENS: tokens, STEP: step})

    @rank_zero_only
    def log_figures(self, files: Sequence[Path]) -> None:
        """Log each PNG file as the image ``figures/<name of the file>``."""
        import wandb

        self.experiment.log({f"{layout.FIGURES}/{file.stem}": wandb.Image(str(file)) for file in files})

    def _begin(self) -> Any:
        import wandb

        if self._online:
            try:
                run = self._init()
            except (wandb.Error, TimeoutError) as error:
                self._online = False
                log.warning("wandb: offline, as the server did not take the run: %s", first_line(error))
                for attempt in (self._folder / layout.WANDB).glob("run-*"):  # `wandb sync` would upload an empty run
                    shutil.rmtree(attempt, ignore_errors=True)
            else:
                replace_text(self._folder / layout.WANDB_RUN, json.dumps({"id": run.id, "url": run.url}) + "\n")
                log.info("wandb: %s", run.url)
                return run
        run = self._init()
        log.info("wandb: upload later with: wandb sync %s", Path(run.dir).parent)
        return run

    def _init(self) -> Any:
        import wandb

        earlier = earlier_run_id(self._folder, self._config["resume"]) if self._online else None
        return wandb.init(
            project=self._project,
            entity=self._entity,
            dir=self._folder,
            config=self._config,
            mode="online" if self._online else "offline",
            reinit="finish_previous",
            settings=wandb.Settings(
                silent=True,  # its messages would disturb the progress bar; our own say where the run is
                console="off",  # train.log has the output; wandb would record every frame of the bar
                init_timeout=self._init_timeout if self._online else LOCAL_TIMEOUT,
                finish_timeout=self._finish_timeout,
                finish_timeout_raises=True,
            ),
            # A resumed run keeps its name, whatever the command that resumes it.
            **({"id": earlier, "resume": "allow"} if earlier else describe_run(self._config)),
        )

    @rank_zero_only
    def finish(self, outcome: Outcome) -> None:
        """End the wandb run with the status of `outcome`; a failure is logged, as the training itself has ended."""
        if self._experiment is None:
            return
        where = Path(self._experiment.dir).parent
        try:
            self._experiment.summary.update({"status": outcome.status, "reason": outcome.reason})
            self._experiment.finish(exit_code=outcome.exit_code)
            trouble = _upload_trouble(where / "logs" / "debug-internal.log") if self._online else None
        except Exception as error:
            trouble = first_line(error)
        finally:
            sys.exit, sys.excepthook = self._hooks
        if self._broken:
            _forget_the_client()
        if trouble is not None:
            flag = "--no-skip-online " if self._online else ""
            log.warning("wandb: not all was uploaded (%s); try: wandb sync %s%s", trouble, flag, where)


def extremes(task: Task) -> dict[str, str]:
    """Return the metrics whose summary is not their last value, each with ``min`` or ``max``.

    The summary of the task's measures on valid is their best value, that of quantities of the catalogue their worst.
    """
    watched = {
        metric: quantity.worst_end
        for quantity in quantities.CATALOGUE
        if quantity.extreme_of is not None
        for metric in quantity.metrics(quantity.extreme_of)
    }
    return {**{metric_name(VALID, measure.name): "min" for measure in task.measures}, **watched}


def earlier_run_id(folder: Path, resume: str | None) -> str | None:
    """Return the id of the online wandb run to be continued; None if there is none.

    Args:
        folder: the run folder, in which a job of a sweep goes on.
        resume: the run that is continued in a new folder: its folder, or a checkpoint in it.
    """
    notes = [folder / layout.WANDB_RUN]
    if resume is not None:
        path = Path(resume).absolute()
        notes.append((path if path.is_dir() else layout.run_folder_of(path)) / layout.WANDB_RUN)
    told = next((read_json(note) for note in notes if note.is_file()), None)
    earlier = told.get("id") if isinstance(told, dict) else None
    if isinstance(earlier, str) and RUN_ID.fullmatch(earlier):
        return earlier
    if any(os.path.lexists(note) for note in notes):
        log.warning("wandb: %s names no run that could be continued: this one begins a new run", notes[-1])
    return None


def _forget_the_client() -> None:
    """End the client's process, which may be dead, so that the next job of a sweep starts a new one."""
    import wandb

    with contextlib.suppress(Exception):  # the process may have ended
        wandb.teardown()


def _upload_trouble(internal_log: Path) -> str | None:
    """Return why the uploads of a run ended early; None if they did not.

    A server that refuses them, as when a key was revoked or a project deleted, ends them for good. `finish` succeeds
    all the same: the client only prints a line, which is off here, and writes one to its log, which is read here.
    """
    try:
        lines = internal_log.read_text(encoding="utf-8", errors="replace").splitlines()
        return next((str(json.loads(line)["msg"]).splitlines()[0] for line in lines if "fatal error" in line), None)
    except (OSError, ValueError, KeyError):
        return None
