"""What the terminal shows while a model trains: a rich bar, or plain lines where nobody watches."""

import logging
import sys
import time
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback, RichProgressBar

from lipformer.training.metrics import bits

log = logging.getLogger(__name__)


class Throughput(Callback):
    """Counts training tokens per second, validation time left out.

    Attributes:
        tokens_per_second: over the whole training so far; nan before the first step.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._tokens_before = 0
        self._started: float | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self._tokens_before = pl_module.tokens_seen
        self._started = time.perf_counter()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop the clock."""
        if self._started is not None:
            self.seconds += time.perf_counter() - self._started
            self._started = None

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock again."""
        self._started = time.perf_counter()

    def elapsed(self) -> float:
        """Return seconds of training so far."""
        return self.seconds + (time.perf_counter() - self._started if self._started is not None else 0.0)

    def tokens_per_second(self, tokens_seen: int) -> float:
        """Return tokens per second since training (re)started."""
        seconds = self.elapsed()
        return (tokens_seen - self._tokens_before) / seconds if seconds > 0 else float("nan")


class RichBar(RichProgressBar):
    """Lightning's rich bar with NLL and tokens per second in place of its metrics.

    Args:
        throughput: counts the tokens.
        total_steps: optimizer steps of the whole training; None where only epochs bound it.
    """

    def __init__(self, throughput: Throughput, total_steps: int | None):
        super().__init__(leave=True)
        self._throughput = throughput
        self._total_steps = total_steps

    def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        """Return what stands behind the bar."""
        return describe_progress(trainer, pl_module, self._throughput)


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
        shown["val"] = f"{value:.3f} nats ({bits(value):.3f} bits)"
    shown["speed"] = f"{throughput.tokens_per_second(pl_module.tokens_seen):,.0f} tokens/s"
    return shown


def progress_callbacks(mode: str, total_steps: int | None) -> tuple[Throughput, list[Callback]]:
    """Return the token counter and the callbacks that show progress.

    Args:
        mode: ``auto`` (rich in a terminal, plain lines elsewhere), ``rich``, ``plain`` or ``none``.
        total_steps: optimizer steps of the whole training, where known.
    """
    throughput = Throughput()
    if mode == "auto":
        mode = "rich" if sys.stdout.isatty() else "plain"
    shown: list[Callback] = {"rich": [RichBar(throughput, total_steps)], "plain": [PlainLines(throughput)], "none": []}[mode]
    return throughput, [throughput, *shown]
