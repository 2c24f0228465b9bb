"""Lightning's training loop, stopped between two steps only; what was due then is done when the run is continued."""

from typing import Any, cast

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loops.fit_loop import _FitLoop
from pytorch_lightning.loops.training_epoch_loop import _TrainingEpochLoop

from lipformer.training.callbacks.stopping import CleanStop
from lipformer.training.task_module import TaskModule


class _Epoch(_TrainingEpochLoop):
    """The loop over the steps of an epoch, which asks `CleanStop` after each whether to go on.

    By then all hooks of the step have been called and its metrics are logged. In the hooks it would be too early: the
    callbacks and loggers after the one that stops would miss the step.
    """

    def __init__(self, trainer: pl.Trainer, stop: CleanStop, max_steps: int):
        super().__init__(trainer, max_steps=max_steps)
        self._stop = stop

    def advance(self, data_fetcher: Any) -> None:
        super().advance(data_fetcher)
        self._stop.check(self.trainer)


class _Fit(_FitLoop):
    """The loop over epochs, which is entered after the last step too: a run may have been stopped just then.

    Callbacks are told that the training starts and ends, and `DueValidation` makes the validation that is missing.
    """

    @property
    def skip(self) -> bool:
        return self.max_batches == 0


def use_own_loops(trainer: pl.Trainer, stop: CleanStop) -> None:
    """Replace the loops that Lightning has built."""
    max_epochs, max_steps = trainer.fit_loop.max_epochs, trainer.fit_loop.max_steps
    trainer.fit_loop = _Fit(trainer, min_epochs=0, max_epochs=max_epochs)
    trainer.fit_loop.epoch_loop = _Epoch(trainer, stop, max_steps)


def validation_is_due(trainer: pl.Trainer) -> bool:
    """Return whether the run that is continued was stopped before, or in, a validation of the state it stands at."""
    batches = trainer.fit_loop.epoch_loop.batch_progress.total.processed  # type: ignore[attr-defined]
    planned = batches > 0 and batches % cast(int, trainer.val_check_interval) == 0
    return cast(TaskModule, trainer.lightning_module).stopped_before_validation and (planned or trainer.fit_loop.done)


class DueValidation(Callback):
    """Makes the validation that was due when the run was stopped; Lightning would go on with the next step.

    It has to be the last of the callbacks, since validating calls those that are to be told of the start before.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Validate, as Lightning does between two steps."""
        if not validation_is_due(trainer):
            return
        loop, epochs = trainer.fit_loop.epoch_loop, trainer.fit_loop.epoch_progress.current
        ended_epoch = int(loop.batch_progress.current.ready == 0)  # whose number the row is to have
        epochs.completed -= ended_epoch
        trainer.validating = True  # chooses the loop whose results are logged
        loop.val_loop.run()
        trainer.training = True
        epochs.completed += ended_epoch
