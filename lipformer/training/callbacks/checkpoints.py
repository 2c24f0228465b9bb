"""The two checkpoints of a run: the best one, and the last one, from which the run can be continued."""

import logging
from pathlib import Path
from typing import Any, cast

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint

from lipformer.assembly.checkpoint import is_whole, read_checkpoint
from lipformer.errors import DivergedError, WriteError
from lipformer.runs import layout
from lipformer.runs.layout import BEST, LAST
from lipformer.system.atomic import copy_whole
from lipformer.system.ranks import rank
from lipformer.system.signals import Terminated
from lipformer.telemetry.diagnosis import nonfinite_parameter
from lipformer.training.callbacks.stopping import InterruptedInStep
from lipformer.training.task_module import TaskModule

log = logging.getLogger(__name__)


class FiniteCheckpoint(ModelCheckpoint):
    """Saves checkpoints, but never of weights that are not finite: such a run has diverged, whatever its score."""

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the weights.

        Raises:
            DivergedError: they are not finite.
        """
        if name := nonfinite_parameter(pl_module):
            raise DivergedError(f"the weights are not finite at step {trainer.global_step}, first {name}: lower lr")
        super().on_validation_end(trainer, pl_module)


class BestCheckpoint(FiniteCheckpoint):
    """Keeps ``best.ckpt``, the checkpoint with the lowest value of a metric.

    A continued run copies the ``best.ckpt`` of the run before into its own folder. Lightning forgets the best score
    when the folder changes; the first validation of the continued run would be the best, however bad.

    Args:
        folder: the run folder.
        resume_from: the checkpoint that is continued, if any.
        monitor: name of the metric; lower is better.
    """

    def __init__(self, folder: Path, resume_from: Path | None, monitor: str):
        super().__init__(monitor=monitor, **_options(folder, BEST))
        self._resume_from = resume_from

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the weights if their score is the best.

        Raises:
            DivergedError: they are not finite.
            WriteError: the file cannot be written; the validation then counts as not made.
        """
        module = cast(TaskModule, pl_module)
        module.validated_step = trainer.global_step  # it is stored in the file
        try:
            super().on_validation_end(trainer, pl_module)
        except BaseException:
            module.validated_step = None
            raise

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy the best checkpoint of the run before, and restore its score."""
        assert self.dirpath is not None
        old = self._resume_from.parent / BEST if self._resume_from is not None else None
        if old is None or not old.is_file() or not state_dict["best_model_path"]:
            return
        if not is_whole(old):
            log.warning("%s is damaged and left out: the best of this run is the best from here on", old)
            return
        new = Path(self.dirpath) / BEST
        Path(self.dirpath).mkdir(parents=True, exist_ok=True)
        if rank() == 0 and old.absolute() != new.absolute():  # a job of a sweep goes on in its own folder
            copy_whole(old, new)
        # A run that was stopped between its two checkpoints has a newer best one than its last one tells of.
        own = read_checkpoint(old)["callbacks"].get(self.state_key, state_dict)
        score = own["best_model_score"]
        moved = {
            "best_model_score": score,
            "kth_value": score,
            "dirpath": self.dirpath,
            "best_model_path": str(new),
            "kth_best_model_path": str(new),
        }
        super().load_state_dict({**state_dict, **moved, "best_k_models": {str(new): score}, "last_model_path": ""})


class LastCheckpoint(FiniteCheckpoint):
    """Keeps ``last.ckpt``, saved after each validation and when an error or a signal ends the run.

    It is not saved when the run diverges, since the state after the last validation is then the better one. The
    checkpoint before is kept as ``previous.ckpt``.

    Args:
        folder: the run folder.
    """

    def __init__(self, folder: Path):
        super().__init__(save_on_exception=True, save_on_train_epoch_end=False, **_options(folder, LAST))

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Save the state, unless the run diverged, the step was not completed, or one of several processes failed."""
        if isinstance(exception, DivergedError):
            return
        if trainer.world_size > 1 and not isinstance(exception, KeyboardInterrupt | Terminated):
            # To save takes all processes, and this one may be the only one that has stopped.
            log.warning("%s stays as it was: another process may have stopped at another step", layout.LAST)
            return
        if isinstance(exception, InterruptedInStep):
            log.warning("%s stays as it was: the training was stopped within a step", LAST)
            return
        if name := nonfinite_parameter(pl_module):
            log.warning("%s stays as it was: the weights are not finite, first %s", LAST, name)
            return
        try:
            super().on_exception(trainer, pl_module, exception)
        except WriteError as error:  # the run's status must tell the exception that ended it, not this one
            log.warning("%s stays as it was: %s", LAST, error)


def _options(folder: Path, file: str) -> dict[str, Any]:
    """Return the options of a callback that keeps one checkpoint: its folder, and its name, which Lightning ends."""
    place = {"dirpath": folder / layout.CHECKPOINTS, "filename": Path(file).stem}
    return {**place, "auto_insert_metric_name": False, "enable_version_counter": False}
