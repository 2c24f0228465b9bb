"""Evaluate a model on a split: measure its objective, and return it as metrics and as a table."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from rich.table import Table
from rich.text import Text
from torch import nn

from lipformer.assembly.checkpoint import Run
from lipformer.config.targets import locate
from lipformer.data.collate import Batch
from lipformer.data.corpus import Split
from lipformer.data.datamodule import CharDataModule
from lipformer.errors import CheckpointError
from lipformer.system.terminal import tracked
from lipformer.system.text import visible
from lipformer.tasks import LANGUAGE, Task, task_of
from lipformer.telemetry.objective import Average

METRIC_PREFIX: dict[str, str] = {"valid": "val", "test": "test"}
"""Split -> the group of its metrics, the same in a training and in an evaluation."""


@torch.no_grad()
def measure(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    device: torch.device,
    task: Task = LANGUAGE,
    show_progress: bool = False,
) -> Average:
    """Sum a task's objective over all batches; how the lines are batched changes rounding only.

    Args:
        model: in eval mode, on `device`.
        batches: the batches; the bar shows their number if it is known.
        device: where the model is.
        task: the task of the model.
        show_progress: whether to show a bar in the terminal.
    """
    total, sums = Average().to(device), locate(task.module, "task").sums
    for batch in tracked(batches, "evaluating", show_progress):
        there = Batch(*(tensor.to(device) for tensor in batch))
        total.update(*sums(model(there.inputs), there))
    return total


def split_metrics(run: Run, data: CharDataModule, split: Split, measured: Average) -> dict[str, Any]:
    """Return the content of ``metrics.json`` for a run on a split, including what it was measured on.

    Raises:
        CheckpointError: the model predicts nan.
    """
    task, score = task_of(run.config), float(measured.compute())
    if not math.isfinite(score):
        predicts = f"the model predicts {score} {task.objective.unit}"
        raise CheckpointError(f"{run.path}: {predicts}, its training diverged; use which=best")
    prefix = METRIC_PREFIX[split]
    return {
        **task.metrics(prefix, score),
        f"{prefix}/{task.counted}": int(measured.count),
        "protocol": data.protocol(split),
        "max_length": data.max_length,
        "softmax_size": len(run.vocabulary),
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "checkpoint": str(run.path),
        "step": run.step,
    }


def metrics_table(run: Run, split: str, metrics: Mapping[str, Any]) -> Table:
    """Return a table of the metrics and of what they were measured on."""
    prefix, task = METRIC_PREFIX[split], task_of(run.config)
    table = Table(title=f"Evaluation on {split}", show_header=False)
    table.add_column("what", no_wrap=True)
    table.add_column("value", overflow="fold")
    for what, value in {
        "run": run.config["name"],
        "checkpoint": str(run.path),
        "step": f"{run.step:,}",
        **{group: _describe(run.config[group]) for group in ("model", "attention") if group in run.config},
        "parameters": f"{metrics['parameters']:,}",
        "protocol": metrics["protocol"],
        task.counted: f"{metrics[f'{prefix}/{task.counted}']:,}",
        "softmax size": str(metrics["softmax_size"]),
        **{measure.short: f"{metrics[f'{prefix}/{measure.name}']:.4f}" for measure in task.measures},
    }.items():
        table.add_row(what, Text(visible(value)))
    return table


def _describe(node: Mapping[str, Any]) -> str:
    """Return the name of a class without its package, and its options."""
    kind = node["_target_"].rpartition(".")[2]
    hidden = ("_target_", "reads")
    options = ", ".join(f"{name}={value}" for name, value in node.items() if name not in hidden)
    return f"{kind} ({options})" if options else kind
