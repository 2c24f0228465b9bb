"""Ending a training where its state is whole, and never without a last validation."""

import logging
import signal
import threading
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from lipformer.system.signals import ending_signals

log = logging.getLogger(__name__)


class InterruptedInStep(KeyboardInterrupt):
    """The user would not wait for the end of the step: half of it may be done."""


class CleanStop(Callback):
    """Stops between two steps: on a signal, and after a last validation when the planned steps are done.

    A signal in the middle of an optimizer step would leave a checkpoint of half a step. So the first Ctrl-C waits for
    the end of the step (or of the validation), the second stops at once. The signals of a system
    (`lipformer.system.signals`) wait for the end of the step too, or of a batch of the validation, which is done again
    when the run is continued: a cluster does not wait for long. With several processes all of them stop after the same
    step, whichever has got the signal.

    And Lightning validates only every so many steps; where the last step is none of them, the run would end without a
    figure for its final weights.

    Attributes:
        asked: whether there was a Ctrl-C; one that came after the last step is left to whoever called `fit`.
    """

    def __init__(self) -> None:
        self.asked = False
        self._previous: Any = None
        self._sigterm: Any = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Note who answers SIGTERM, before Lightning adds an answer of its own."""
        self._sigterm = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take over Ctrl-C, and put Lightning's answer to SIGTERM aside where there was one before it."""
        self.asked = False
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._on_interrupt)
            if self._sigterm not in (None, signal.SIG_DFL):
                signal.signal(signal.SIGTERM, self._sigterm)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise InterruptedInStep
        self.asked = True
        log.warning("interrupted: stopping at the end of this step; once more to stop at once")

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Stop here if asked to, or let the last step be followed by a validation."""
        received = self._received(trainer)
        if received == signal.SIGINT:
            raise KeyboardInterrupt
        ending_signals.check(received)
        last_epoch = trainer.max_epochs is not None and trainer.current_epoch + 1 == trainer.max_epochs
        if trainer.global_step == trainer.max_steps or (last_epoch and trainer.is_last_batch):
            trainer.should_stop = True  # Lightning validates before it stops

    def _received(self, trainer: pl.Trainer) -> int:
        """Number of the signal that a process of the training has received; 0 for none."""
        received = int(signal.SIGINT) if self.asked else ending_signals.received
        if trainer.world_size == 1:
            return received
        numbers = torch.tensor(received, device=trainer.strategy.root_device)
        return int(trainer.strategy.reduce(numbers, reduce_op="max"))

    def on_validation_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Stop here if the system asks to; not with several processes, of which some may have no batch left."""
        if trainer.world_size == 1:
            ending_signals.check()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Give Ctrl-C back."""
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None
