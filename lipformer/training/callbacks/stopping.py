"""The callback that ends a training between two steps, and after a last validation."""

import logging
import signal
import threading
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

from lipformer.system.signals import ending_signals

log = logging.getLogger(__name__)


class InterruptedInStep(KeyboardInterrupt):
    """A second Ctrl-C, which ends the training in the middle of a step; the step may be half done."""


class CleanStop(Callback):
    """Stops the training between two steps, on a signal or after the last planned step.

    To stop in the middle of an optimizer step would leave a checkpoint of half a step. So the first Ctrl-C takes effect
    at the end of the step (or of the validation), and only a second one at once. The signals by which a system ends a
    process (`lipformer.system.signals`) take effect at the end of the step, or of a batch of the validation, because a
    cluster does not wait for long; the validation starts again when the run is continued. With several processes all of
    them stop after the same step, whichever of them received the signal.

    `check` is called by the loop (`lipformer.training.loops`), when the metrics of the step are logged.

    After the last planned step there is always a validation. Lightning itself validates only every so many steps, and
    would otherwise end the run without a score of its final weights.

    Attributes:
        asked: whether the user pressed Ctrl-C. If that was after the last step, the caller of `fit` has to act on it.
    """

    def __init__(self) -> None:
        self.asked = False
        self._previous: Any = None
        self._sigterm: Any = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Keep the present handler of SIGTERM, before Lightning installs one of its own."""
        self._sigterm = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Install a handler of Ctrl-C, and restore the handler of SIGTERM that Lightning has replaced, if any."""
        self.asked = False
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._on_interrupt)
            if self._sigterm not in (None, signal.SIG_DFL):
                signal.signal(signal.SIGTERM, self._sigterm)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        """Answer Ctrl-C.

        Raises:
            InterruptedInStep: it is the second one.
        """
        if self.asked:
            raise InterruptedInStep
        self.asked = True
        log.warning("interrupted: stopping at the end of this step; once more to stop at once")

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Let a validation follow if this was the last step."""
        last_epoch = trainer.max_epochs is not None and trainer.current_epoch + 1 == trainer.max_epochs
        if trainer.global_step == trainer.max_steps or (last_epoch and trainer.is_last_batch):
            trainer.should_stop = True  # Lightning validates before it stops

    def check(self, trainer: pl.Trainer) -> None:
        """Stop if a signal has been received; the loop asks between two steps.

        Raises:
            KeyboardInterrupt: the user pressed Ctrl-C.
            Terminated: a process received another signal that ends it.
        """
        received = _of_any_process(trainer, int(signal.SIGINT) if self.asked else ending_signals.received)
        if received == signal.SIGINT:
            raise KeyboardInterrupt
        ending_signals.check(received)

    def on_validation_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Stop if a signal other than Ctrl-C has been received; every process has the same number of batches.

        Raises:
            Terminated: a process received a signal that ends it.
        """
        ending_signals.check(_of_any_process(trainer, ending_signals.received))

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Let the other processes end by themselves."""
        _watch_no_longer(trainer)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Restore the handler of Ctrl-C, and let the other processes end by themselves."""
        _watch_no_longer(trainer)
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None


def _of_any_process(trainer: pl.Trainer, received: int) -> int:
    """Return the number of the signal that any process of the training has received; 0 for none.

    Args:
        trainer: has the processes, all of which call this.
        received: what this process has received.
    """
    if trainer.world_size == 1:
        return received
    return int(trainer.strategy.reduce(torch.tensor(received, device=trainer.strategy.root_device), reduce_op="max"))


def _watch_no_longer(trainer: pl.Trainer) -> None:
    """Forget the processes that Lightning has started, if any.

    As long as it knows them, it kills this process within seconds when one of them has ended by an error. While all
    train, that is as it should be: this one could be waiting for it. Afterwards it would be in the middle of writing.
    """
    launcher = trainer.strategy.launcher
    if isinstance(launcher, _SubprocessScriptLauncher):
        launcher.procs.clear()
