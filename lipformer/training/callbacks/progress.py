"""What the terminal shows while a model trains: a rich bar, or plain lines where nobody watches."""

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
"""Between two looks at the figures: each reads numbers from the device, which waits for it."""
ROOM_FOR_RATE = 56
"""Columns of a terminal from which the tokens per second stand beside the bar."""
SEPARATOR = "  "


class RateColumn(ProgressColumn):
    """A task's field ``rate``, where the terminal has room for it.

    Args:
        console: the terminal.
    """

    def __init__(self, console: Console):
        super().__init__(Column(no_wrap=True))
        self._console = console

    def render(self, task: Task) -> Text:
        """Return the field, or nothing."""
        return Text(task.fields["rate"] if self._console.width >= ROOM_FOR_RATE else "", no_wrap=True)


class FiguresLine:
    """Figures in a line, the most important first, as many as there is room for."""

    def __init__(self) -> None:
        self.figures: list[str] = []

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the line."""
        yield Text(fitting(self.figures, options.max_width), no_wrap=True, overflow="crop")


class TrainingProgress(Progress):
    """A bar, one of the validation's own while there is one, and a line of figures as far as the terminal is wide.

    Args:
        console: where to; rich's own unless given.
    """

    def __init__(self, console: Console | None = None):
        console = console or get_console()
        self.line = FiguresLine()
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
        """Yield the bars and the figures."""
        yield from super().get_renderables()
        yield self.line


class RichBar(Callback):
    """A bar over the optimizer steps of the whole training, with the figures worth watching and the time left.

    Lightning's own bar counts the batches of one epoch, which says little of a training bounded by steps.

    Args:
        throughput: the clock.
        console: where to; the terminal unless given.
    """

    def __init__(self, throughput: Throughput, console: Console | None = None):
        self._throughput = throughput
        self._console = console
        self._progress: TrainingProgress | None = None
        self._redirected: list[tuple[logging.StreamHandler[TextIO], TextIO]] = []
        self._looked = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the bar, on the first rank."""
        if not trainer.is_global_zero:
            return
        self._progress = TrainingProgress(self._console)
        self._progress.update(self._progress.training, total=last_step(trainer), completed=trainer.global_step)
        stdout = sys.stdout
        self._progress.start()
        # Rich keeps lines that are written to the new sys.stdout apart from the bar; a log has hold of the old one.
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is stdout:
                handler.setStream(sys.stdout)
                self._redirected.append((handler, stdout))

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Move the bar on, and now and then the figures."""
        if self._progress is not None:
            self._progress.update(self._progress.training, completed=trainer.global_step)
            if time.perf_counter() >= self._looked + REFRESH_SECONDS:
                self._look(trainer, pl_module)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show a bar of the validation's own."""
        if self._progress is not None:
            total = sum(int(batches) for batches in trainer.num_val_batches)
            self._progress.reset(self._progress.validation, total=total, visible=True)

    def on_validation_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Move the validation's bar on."""
        if self._progress is not None:
            self._progress.advance(self._progress.validation)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Hide the validation's bar."""
        if self._progress is not None:
            self._progress.update(self._progress.validation, visible=False)
            self._look(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the last figures."""
        if self._progress is not None:
            self._look(trainer, pl_module)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Leave the bar as it stands: Lightning calls no `teardown` after an error."""
        self.teardown(trainer, pl_module, "fit")

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Leave the bar as it stands."""
        if self._progress is not None:
            for handler, stream in self._redirected:
                handler.setStream(stream)
            self._redirected.clear()
            self._progress.stop()
            self._progress = None

    def _look(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert self._progress is not None
        self._looked = time.perf_counter()
        self._progress.line.figures = describe_progress(trainer, cast(TaskModule, pl_module).task)
        rate, left = describe_rate(pl_module, self._throughput), describe_time_left(trainer, self._throughput)
        self._progress.update(self._progress.training, rate=rate, left=left)


class PlainLines(Callback):
    """One line for each validation: for logs, pipes and clusters.

    Args:
        throughput: the clock.
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
    """Return the figures worth watching, the most important first.

    The task's objective on the training text (since the last line of metrics) and on valid; the measures derived from
    the latter, or from the former before there is one (bits of nats); the gradient's norm before clipping; and the
    attention's entropy as a share of the largest possible, where a callback has it in a mapping ``latest``.
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


def fitting(figures: Iterable[str], width: int) -> str:
    """Join figures in a line up to the first that is too much for `width` columns."""
    line = ""
    for figure in figures:
        longer = f"{line}{SEPARATOR}{figure}" if line else figure
        if len(longer) > width:
            break
        line = longer
    return line


def progress_callbacks(mode: str) -> tuple[Throughput, list[Callback]]:
    """Return the counter of tokens, and with it the callbacks that show progress.

    Args:
        mode: ``auto`` (rich in a terminal that can redraw a line, plain lines elsewhere), ``rich``, ``plain`` or
            ``none``.
    """
    throughput = Throughput()
    if mode == "auto":
        mode = "rich" if sys.stdout.isatty() and not Console().is_dumb_terminal else "plain"
    shown: dict[str, list[Callback]] = {"rich": [RichBar(throughput)], "plain": [PlainLines(throughput)], "none": []}
    return throughput, [throughput, *shown[mode]]
