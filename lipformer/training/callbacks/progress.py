"""What the terminal shows while a model trains: a rich bar, or plain lines where nobody watches."""

import logging
import sys
import time
from typing import Any, cast

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lipformer.training.module import LanguageModule

log = logging.getLogger(__name__)


class Throughput(Callback):
    """Counts seconds of training, validation left out, and tokens per second."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._tokens_before = 0
        self._started: float | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self._tokens_before = cast(LanguageModule, pl_module).tokens_seen
        self._started = time.perf_counter()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop the clock."""
        self._seconds, self._started = self.seconds(), None

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock again."""
        self._started = time.perf_counter()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop the clock for good."""
        self._seconds, self._started = self.seconds(), None

    def seconds(self) -> float:
        """Return seconds of training since it (re)started."""
        return self._seconds + (time.perf_counter() - self._started if self._started is not None else 0.0)

    def tokens_per_second(self, tokens_seen: int) -> float:
        """Return tokens per second since training (re)started; nan before it has."""
        seconds = self.seconds()
        return (tokens_seen - self._tokens_before) / seconds if seconds > 0 else float("nan")


class RichBar(Callback):
    """A bar over the optimizer steps of the whole training, with NLL, tokens per second and the time left.

    Lightning's own bar counts the batches of one epoch, which says little of a training bounded by steps.
    """

    def __init__(self, throughput: Throughput):
        self._throughput = throughput
        self._progress: Progress | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the bar, on the first rank."""
        if not trainer.is_global_zero:
            return
        columns = (
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}"),
        )
        self._progress = Progress(*columns, TimeRemainingColumn(compact=True), transient=False)
        self._training = self._progress.add_task("train", total=last_step(trainer), figures="")
        self._validation = self._progress.add_task("valid", total=None, figures="validation", visible=False)
        self._progress.start()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Move the bar on."""
        if self._progress is not None:
            shown = describe_progress(trainer, pl_module, self._throughput)
            figures = "  ".join(f"{name} {value}" for name, value in shown.items())
            self._progress.update(self._training, completed=trainer.global_step, figures=figures)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show a bar of the validation's own."""
        if self._progress is not None:
            total = sum(int(batches) for batches in trainer.num_val_batches)
            self._progress.reset(self._validation, total=total, figures="validation", visible=True)

    def on_validation_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Move the validation's bar on."""
        if self._progress is not None:
            self._progress.advance(self._validation)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Hide the validation's bar."""
        if self._progress is not None:
            self._progress.update(self._validation, visible=False)
            self.on_train_batch_end(trainer, pl_module)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Leave the bar as it stands, also after an error."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def last_step(trainer: pl.Trainer) -> int:
    """Return the optimizer step at which training ends: the nearer of ``max_steps`` and ``max_epochs``."""
    limits = [trainer.max_steps] if trainer.max_steps != -1 else []
    if trainer.max_epochs not in (None, -1):
        limits.append(trainer.max_epochs * int(trainer.num_training_batches))
    return min(limits)


class PlainLines(Callback):
    """One line for each validation: for logs, pipes and clusters."""

    def __init__(self, throughput: Throughput):
        self._throughput = throughput

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the line."""
        shown = describe_progress(trainer, pl_module, self._throughput)
        log.info("step %d  %s", trainer.global_step, "  ".join(f"{name} {value}" for name, value in shown.items()))


def describe_progress(trainer: pl.Trainer, pl_module: pl.LightningModule, throughput: Throughput) -> dict[str, str]:
    """Return the figures worth watching, formatted: NLL in nats per character, tokens per second."""
    shown = {}
    metrics = trainer.callback_metrics
    if "train/nats_per_char" in metrics:
        shown["train"] = f"{float(metrics['train/nats_per_char']):.3f} nats"
    if "val/nats_per_char" in metrics:
        value = float(metrics["val/nats_per_char"])
        shown["valid"] = f"{value:.3f} nats"
    shown["at"] = f"{throughput.tokens_per_second(cast(LanguageModule, pl_module).tokens_seen):,.0f} tokens/s"
    return shown


def progress_callbacks(mode: str) -> tuple[Throughput, list[Callback]]:
    """Return the counter of tokens, and with it the callbacks that show progress.

    Args:
        mode: ``auto`` (rich in a terminal, plain lines elsewhere), ``rich``, ``plain`` or ``none``.
    """
    throughput = Throughput()
    if mode == "auto":
        mode = "rich" if sys.stdout.isatty() else "plain"
    shown: dict[str, list[Callback]] = {"rich": [RichBar(throughput)], "plain": [PlainLines(throughput)], "none": []}
    return throughput, [throughput, *shown[mode]]
