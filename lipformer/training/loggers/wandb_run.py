"""One Weights & Biases run for each training run: named, and finished with the run's exit code."""

import contextlib
import json
import logging
import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.loggers.logger import rank_zero_experiment
from pytorch_lightning.utilities import rank_zero_only

from lipformer.runs import quantities
from lipformer.runs.folder import Outcome
from lipformer.runs.metric_names import TOKENS, VALID, metric_name
from lipformer.system.atomic import replace_text
from lipformer.tasks import Task, task_of
from lipformer.training.loggers.wandb_mode import describe_run, first_line, no_reports_to_wandb

log = logging.getLogger(__name__)

LOCAL_TIMEOUT = 90.0  # seconds for wandb's own process to start, on a busy machine too
STEP = "trainer/global_step"  # the base class logs it with every metric; wandb's own step counts calls of log


class WandbRunLogger(WandbLogger):
    """Logs to a wandb run of its own, begun when the trainer first asks for it, on rank zero alone.

    Differs from its base in five things: it never takes over a run that another job left open; a server that does
    not answer turns the run offline instead of ending the training, and no later trouble with wandb ends it either;
    metrics are drawn over the tokens seen, and some are summed up by their extreme; `finish` passes the exit code on;
    and nothing process-wide changes (the base's ``offline=True`` sets an environment variable for all later jobs).

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
        self._extremes = extremes(task_of(config))
        self._broken = False

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The wandb run; begun at the first call."""
        if self._experiment is None:
            self._hooks = sys.exit, sys.excepthook  # wandb replaces both and never puts them back
            with no_reports_to_wandb():
                self._experiment = self._begin()
            self._experiment.define_metric(STEP)
            self._experiment.define_metric(TOKENS)
            # A row without tokens gets those of the row before: `step_sync`.
            self._experiment.define_metric("*", step_metric=TOKENS, step_sync=True)
            for metric, extreme in self._extremes.items():
                self._experiment.define_metric(metric, step_metric=TOKENS, step_sync=True, summary=extreme)
        return self._experiment

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log one row; the first trouble with it is a warning, and of the rest ``metrics.csv`` knows.

        Args:
            metrics: name to value. A nan among `extremes` is left out: it would be the extreme from then on.
            step: optimizer steps so far.
        """
        _ = self.experiment  # a run that cannot even begin is an error
        row = {name: value for name, value in metrics.items() if not (name in self._extremes and math.isnan(value))}
        try:
            super().log_metrics(row, step)
        except Exception as error:
            if not self._broken:
                log.warning("wandb: rows are being lost (%s); metrics.csv has them all", first_line(error))
            self._broken = True

    @rank_zero_only
    def log_samples(self, sentences: Sequence[str], step: int, tokens: int) -> None:
        """Log what the model wrote as the table ``samples``: step, tokens, number, sentence."""
        import wandb

        rows = [[step, tokens, number, sentence] for number, sentence in enumerate(sentences, start=1)]
        table = wandb.Table(columns=["step", "tokens", "number", "sentence"], data=rows)
        self.experiment.log({"samples": table, TOKENS: tokens, STEP: step})

    @rank_zero_only
    def log_figures(self, files: Sequence[Path]) -> None:
        """Log each PNG file as the image ``figures/<its name>``."""
        import wandb

        self.experiment.log({f"figures/{file.stem}": wandb.Image(str(file)) for file in files})

    def _begin(self) -> Any:
        import wandb

        if self._online:
            try:
                run = self._init()
            except (wandb.Error, TimeoutError) as error:
                self._online = False
                log.warning("wandb: offline, as the server did not take the run: %s", first_line(error))
                for attempt in (self._folder / "wandb").glob("run-*"):  # `wandb sync` would upload its empty shell
                    shutil.rmtree(attempt, ignore_errors=True)
            else:
                replace_text(self._folder / "wandb.json", json.dumps({"id": run.id, "url": run.url}) + "\n")
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

    Of the task's measures on valid it is the best value of the run, of the catalogue's quantities the worst.
    """
    watched = {
        metric: quantity.worst_end
        for quantity in quantities.CATALOGUE
        if quantity.extreme_of is not None
        for metric in quantity.metrics(quantity.extreme_of)
    }
    return {**{metric_name(VALID, measure.name): "min" for measure in task.measures}, **watched}


def earlier_run_id(resume: str | None) -> str | None:
    """Return the id of the online wandb run that `resume`, a run folder or a checkpoint in one, belongs to."""
    if resume is None:
        return None
    path = Path(resume).absolute()
    note = (path if path.is_dir() else path.parent.parent) / "wandb.json"
    return json.loads(note.read_text())["id"] if note.is_file() else None


def _forget_the_client() -> None:
    """Let the next run, of a sweep's next job, start the client's process anew: this one may be dead."""
    import wandb

    with contextlib.suppress(Exception):  # of the process that is no more
        wandb.teardown()


def _upload_trouble(internal_log: Path) -> str | None:
    """Return why the uploads of a run ended before it did; None where they did not.

    A server that refuses (a key revoked, a project deleted) ends them for good. `finish` succeeds then too: the client
    leaves it at a line on the terminal, where it is `silent`, and this one.
    """
    try:
        lines = internal_log.read_text(encoding="utf-8", errors="replace").splitlines()
        return next((str(json.loads(line)["msg"]).splitlines()[0] for line in lines if "fatal error" in line), None)
    except (OSError, ValueError, KeyError):
        return None
