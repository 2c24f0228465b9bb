"""The progress of a training in the terminal: a bar drawn by rich, or plain lines in logs and pipes."""

import logging
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, TextIO, cast

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from rich import get_console
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from lipformer import tasks
from lipformer.runs.quantities import by_section
from lipformer.runs.readings import latest_values
from lipformer.training.callbacks.throughput import Throughput, describe_rate, describe_time_left, last_step
from lipformer.training.task_module import TaskModule

log = logging.getLogger(__name__)

REFRESH_SECONDS = 0.1
"""The least time between two updates of the values: each update reads numbers from the device, which has to wait."""
ROOM_FOR_RATE = 56
"""The width of the terminal, in columns, from which on the tokens per second are shown beside the bar."""
SEPARATOR = "  "


class RateColumn(ProgressColumn):
    """The column of the bar that shows the field ``rate``, if the terminal is wide enough.

    Args:
        console: the terminal.
    """

    def __init__(self, console: Console):
        super().__init__(Column(no_wrap=True))
        self._console = console

    def render(self, task: Task) -> Text:
        """Return the field, or an empty text."""
        return Text(task.fields["rate"] if self._console.width >= ROOM_FOR_RATE else "", no_wrap=True)


class MetricsLine:
    """A line of values, the most important first: as many as there is room for."""

    def __init__(self) -> None:
        self.values: list[str] = []

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the line."""
        yield Text(fitting(self.values, options.max_width), no_wrap=True, overflow="crop")


class TrainingProgress(Progress):
    """A bar for the training, a second one during a validation, and below them a line of values.

    Args:
        console: the terminal; None for rich's own.
    """

    def __init__(self, console: Console | None = None):
        console = console or get_console()
        self.line = MetricsLine()
        super().__init__(
            TextColumn("{task.description}"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            RateColumn(console),
            TextColumn("{task.fields[left]}"),
            console=console,
            expand=True,
        )
        self.training = self.add_task("step", rate="", left="")
        self.validation = self.add_task("valid", visible=False, rate="", left="")

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the bars and the line of values."""
        yield from super().get_renderables()
        yield self.line


class RichBar(Callback):
    """Shows a bar over the optimizer steps of the whole training, with the main values and the time that is left.

    Lightning's own bar counts the batches of one epoch, which says little about a training that is limited by steps.

    Args:
        throughput: counts the time and the tokens.
        console: the terminal; None for rich's own.
    """

    def __init__(self, throughput: Throughput, console: Console | None = None):
        self._throughput = throughput
        self._console = console
        self._progress: TrainingProgress | None = None
        self._redirected: list[tuple[logging.StreamHandler[TextIO], TextIO]] = []
        self._looked = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the bar on the first rank."""
        if not trainer.is_global_zero:
            return
        self._progress = TrainingProgress(self._console)
        self._progress.update(self._progress.training, total=last_step(trainer), completed=trainer.global_step)
        stdout = sys.stdout
        self._progress.start()
        # Rich replaces sys.stdout to print lines above the bar; log handlers still write to the old stream.
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is stdout:
                handler.setStream(sys.stdout)
                self._redirected.append((handler, stdout))

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Advance the bar, and update the values if `REFRESH_SECONDS` have passed."""
        if self._progress is not None:
            self._progress.update(self._progress.training, completed=trainer.global_step)
            if time.perf_counter() >= self._looked + REFRESH_SECONDS:
                self._look(trainer, pl_module)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the bar of the validation."""
        if self._progress is not None:
            total = sum(int(batches) for batches in trainer.num_val_batches)
            self._progress.reset(self._progress.validation, total=total, visible=True)

    def on_validation_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Advance the bar of the validation."""
        if self._progress is not None:
            self._progress.advance(self._progress.validation)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Hide the bar of the validation, and update the values."""
        if self._progress is not None:
            self._progress.update(self._progress.validation, visible=False)
            self._look(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the final values."""
        if self._progress is not None:
            self._look(trainer, pl_module)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Stop the bar: Lightning does not call `teardown` after an error."""
        self.teardown(trainer, pl_module, "fit")

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Stop the bar; it stays visible as it is."""
        if self._progress is not None:
            for handler, stream in self._redirected:
                handler.setStream(stream)
            self._redirected.clear()
            self._progress.stop()
            self._progress = None

    def _look(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert self._progress is not None
        self._looked = time.perf_counter()
        self._progress.line.values = describe_progress(trainer, cast(TaskModule, pl_module).task)
        rate, left = describe_rate(pl_module, self._throughput), describe_time_left(trainer, self._throughput)
        self._progress.update(self._progress.training, rate=rate, left=left)


class PlainLines(Callback):
    """Logs one line after each validation, for logs, pipes and clusters.

    Args:
        throughput: counts the time and the tokens.
    """

    def __init__(self, throughput: Throughput):
        self._throughput = throughput

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the line."""
        rate, left = describe_rate(pl_module, self._throughput), describe_time_left(trainer, self._throughput)
        step = f"step {trainer.global_step}/{last_step(trainer)}"
        log.info(
            "%s", SEPARATOR.join([step, *describe_progress(trainer, cast(TaskModule, pl_module).task), rate, left])
        )


def describe_progress(trainer: pl.Trainer, task: tasks.Task) -> list[str]:
    """Return the main values of a training as texts, the most important first.

    These are the task's objective on the training text (its mean since the last row of metrics) and on valid; the
    measures derived from the objective on valid, or on the training text before the first validation; and the
    quantities of the catalogue that have a text for the line of progress.

    Args:
        trainer: has the metrics that were logged; a callback may have more of them in a mapping ``latest``.
        task: the task, which names the objective.
    """
    metrics = trainer.callback_metrics
    latest: dict[str, float] = {}
    for callback in cast(Any, trainer).callbacks:
        found = getattr(callback, "latest", None)
        if isinstance(found, Mapping):  # a user's callback may call something else by this name
            latest |= found
    shown, score = [], None
    for name, prefix in (("train", "train"), ("valid", "val")):
        if task.metric(prefix) in metrics:
            score = float(metrics[task.metric(prefix)])
            shown.append(f"{name} {score:.3f} {task.objective.unit}")
    if score is not None:
        shown += [f"{measure.of(score):.3f} {measure.unit}" for measure in task.derived]
    for quantity in by_section():
        if (value := quantity.progress) is not None:
            for title, number, _ in latest_values({**metrics, **latest}, quantity, value):
                shown.append(f"{title} {value.spelled.format(number)}")
    return shown


def fitting(values: Iterable[str], width: int) -> str:
    """Return the values in one line, up to the first one for which `width` columns are too few."""
    line = ""
    for value in values:
        longer = f"{line}{SEPARATOR}{value}" if line else value
        if len(longer) > width:
            break
        line = longer
    return line


def progress_callbacks(mode: str) -> tuple[Throughput, list[Callback]]:
    """Return the counter of time and tokens, and all callbacks that are needed to show the progress.

    Args:
        mode: ``auto`` (a bar in a terminal that can redraw a line, plain lines elsewhere), ``rich``, ``plain`` or
            ``none``.
    """
    throughput = Throughput()
    if mode == "auto":
        mode = "rich" if sys.stdout.isatty() and not Console().is_dumb_terminal else "plain"
    shown: dict[str, list[Callback]] = {"rich": [RichBar(throughput)], "plain": [PlainLines(throughput)], "none": []}
    return throughput, [throughput, *shown[mode]]
