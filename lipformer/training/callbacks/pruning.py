"""The callback that reports a training to its search, and ends it if it is hopeless beside the other trials."""

import logging
from typing import cast

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from lipformer.errors import one_line
from lipformer.runs.search import JobTrial
from lipformer.training.task_module import TaskModule

log = logging.getLogger(__name__)


class PruneHopeless(Callback):
    """Reports the objective of each validation, and stops the training where the search finds the trial hopeless.

    The training ends as after its last step, with its checkpoints; one that has taken its last step is not pruned.
    Where the study cannot be reached, the training goes on.

    Args:
        trial: the trial that this training is.

    Attributes:
        reason: why the training was stopped; empty if it was not.
    """

    def __init__(self, trial: JobTrial):
        self._trial = trial
        self.reason = ""

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Report the validation that has ended."""
        task = cast(TaskModule, pl_module).task
        score, step = float(trainer.callback_metrics[task.metric("val")]), trainer.global_step
        hopeless = self._report(step, score) if trainer.is_global_zero else False
        # One rank asks: another, a moment later, might be told otherwise.
        if trainer.strategy.broadcast(hopeless) and not trainer.should_stop:
            self.reason = (
                f"stopped at step {step} with {score:.4f} {task.objective.short}: the other trials of the search were "
                "better by then"
            )
            trainer.should_stop = True

    def _report(self, step: int, score: float) -> bool:
        try:
            return self._trial.report(step, score)
        except Exception as error:
            log.warning("step %d could not be reported to the search, the training goes on: %s", step, one_line(error))
            return False
