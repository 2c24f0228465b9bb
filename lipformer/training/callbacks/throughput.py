"""The speed of a training, and the time it still needs."""

import math
import time
from typing import cast

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from lipformer.training.task_module import TaskModule


class Throughput(Callback):
    """Measures the seconds of training without its validations, the tokens per second, and the seconds left."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._tokens_before = 0
        self._steps_before = 0
        self._started: float | None = None
        self._validation_started = 0.0
        self._validation_seconds = 0.0
        self._validations = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self._tokens_before = cast(TaskModule, pl_module).tokens_seen
        self._steps_before = trainer.global_step
        self._started = time.perf_counter()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop the clock."""
        self._seconds, self._started = self.seconds(), None
        self._validation_started = time.perf_counter()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock again."""
        self._started = time.perf_counter()
        self._validation_seconds += self._started - self._validation_started
        self._validations += 1

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop the clock."""
        self._seconds, self._started = self.seconds(), None

    def seconds(self) -> float:
        """Return the seconds of training since it started or was resumed."""
        return self._seconds + (time.perf_counter() - self._started if self._started is not None else 0.0)

    def tokens_per_second(self, tokens_seen: int) -> float:
        """Return the tokens per second since training started or was resumed; nan before that."""
        seconds = self.seconds()
        return (tokens_seen - self._tokens_before) / seconds if seconds > 0 else float("nan")

    def seconds_left(self, trainer: pl.Trainer) -> float:
        """Return the seconds to the end of the training, validations included; nan before the first step.

        A step and a validation are assumed to take as long as they did on average since training started or was
        resumed. A speed over the last seconds would fall to zero during a validation and jump after a resumption.
        """
        done, last = trainer.global_step - self._steps_before, last_step(trainer)
        if done <= 0:
            return float("nan")
        steps = last - trainer.global_step
        if steps <= 0:
            return 0.0
        every = int(trainer.val_check_interval)
        validations = math.ceil(last / every) - trainer.global_step // every  # one follows the last step
        a_validation = self._validation_seconds / self._validations if self._validations else 0.0
        return steps * self.seconds() / done + validations * a_validation


def last_step(trainer: pl.Trainer) -> int:
    """Return the optimizer step at which training ends, by ``max_steps`` or ``max_epochs``, whichever comes first."""
    limits = [trainer.max_steps] if trainer.max_steps != -1 else []
    if trainer.max_epochs not in (None, -1):
        limits.append(trainer.max_epochs * int(trainer.num_training_batches))
    return min(limits)


def describe_rate(pl_module: pl.LightningModule, throughput: Throughput) -> str:
    """Return the tokens per second since training started or was resumed, as text."""
    return f"{throughput.tokens_per_second(cast(TaskModule, pl_module).tokens_seen):,.0f} tokens/s"


def describe_time_left(trainer: pl.Trainer, throughput: Throughput) -> str:
    """Return the time to the end of the training as text; empty before the first step."""
    seconds = throughput.seconds_left(trainer)
    return "" if math.isnan(seconds) else f"{clock(seconds)} left"


def clock(seconds: float) -> str:
    """Return a duration in seconds as hours, minutes and seconds."""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
