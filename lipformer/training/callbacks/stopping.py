"""Ending a training where its state is whole, and never without a last validation."""

import logging
import signal
import threading
from types import FrameType
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

log = logging.getLogger(__name__)


class CleanStop(Callback):
    """Stops between two steps: on Ctrl-C, and after a last validation when the planned steps are done.

    Ctrl-C in the middle of an optimizer step would leave a checkpoint of half a step. So the first Ctrl-C waits for
    the end of the step (or of the validation), the second stops at once. And Lightning validates only every so many
    steps; where the last step is none of them, the run would end without a figure for its final weights.

    Attributes:
        asked: whether there was a Ctrl-C; one that came after the last step is left to whoever called `fit`.
    """

    def __init__(self) -> None:
        self.asked = False
        self._previous: Any = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take over Ctrl-C."""
        self.asked = False
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._on_interrupt)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        log.warning("interrupted: stopping at the end of this step; once more to stop at once")

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Stop here if asked to, or let the last step be followed by a validation."""
        if self.asked:
            raise KeyboardInterrupt
        last_epoch = trainer.max_epochs is not None and trainer.current_epoch + 1 == trainer.max_epochs
        if trainer.global_step == trainer.max_steps or (last_epoch and trainer.is_last_batch):
            trainer.should_stop = True  # Lightning validates before it stops

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Give Ctrl-C back."""
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None
