"""A trained model measured on a split of its corpus, from its checkpoint alone, and sentences that it writes."""

import json
import logging
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
from rich.progress import Progress
from rich.table import Table
from rich.text import Text
from torch import nn

from lipformer.atomic import replace_text
from lipformer.config import EvaluateConfig
from lipformer.data.collate import Batch
from lipformer.data.corpus import Corpus, Split
from lipformer.data.datamodule import CharDataModule
from lipformer.errors import CheckpointError, DataError, UsageError
from lipformer.generate import sample
from lipformer.modules import contracts
from lipformer.run_folder import write_metrics
from lipformer.tasks import LANGUAGE, Task, task_of
from lipformer.terminal import wide_console
from lipformer.training.build import LOADER_KEYS, build_corpus
from lipformer.training.checkpoint import Run, load_run
from lipformer.training.metrics import Average

log = logging.getLogger(__name__)

METRIC_PREFIX: dict[str, str] = {"valid": "val", "test": "test"}
"""Split -> first part of its metrics' names, the same in training and here."""


def run_evaluation(settings: EvaluateConfig, folder: Path) -> float:
    """Measure a run on a split, print the figures, and leave them in `folder`.

    ``metrics.json`` holds the measures of the run's task, ``<prefix>/nats_per_char`` and ``<prefix>/bits_per_char``,
    and ``<prefix>/tokens`` (prefix ``val`` or ``test``), and what they are figures of; ``samples.json`` the sentences,
    where some were asked for.
    The run is computed with in float32 and its folder only read.

    Args:
        settings: the validated configuration.
        folder: of this evaluation.

    Returns:
        Nats per character.

    Raises:
        CheckpointError: there is no checkpoint, or it is truncated, unsafe or inconsistent; it predicts nan.
        DataError: the split cannot be read, or holds a line longer than the model reads.
        UsageError: an option of `settings` does not fit the run or the machine.
    """
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    device = choose_device(settings.accelerator)
    run = load_run(cast(str, settings.checkpoint), which=settings.which, allow_targets=settings.allow_targets)
    run.model.to(device)
    data = open_split(run, settings)
    split = cast(Split, settings.split)
    log.info("evaluating %s on %s", run.path, data.protocol(split))

    # Sampling comes before the long part, so that a prompt that the model cannot read is refused at once.
    generate = asdict(settings.generate)
    sentences = sample(run.model, run.vocabulary, **generate)
    loader = data.val_dataloader() if split == "valid" else data.test_dataloader()
    measured = measure(run.model, loader, device=device, task=task_of(run.config), show_progress=sys.stdout.isatty())
    metrics = figures_of(run, data, split, measured)
    write_metrics(folder, metrics)
    console = wide_console()
    console.print(figures_table(run, split, metrics))
    if sentences:
        samples = {**generate, "sentences": sentences}
        replace_text(folder / "samples.json", json.dumps(samples, indent=2, ensure_ascii=False) + "\n")
        console.print("\nSentences")
        for number, sentence in enumerate(sentences, start=1):
            console.print(Text(f"{number:>{len(str(len(sentences)))}}  {sentence}"), soft_wrap=True)
    log.info("figures: %s", folder / "metrics.json")
    return metrics[task_of(run.config).metric(METRIC_PREFIX[split])]


def figures_of(run: Run, data: CharDataModule, split: Split, measured: Average) -> dict[str, Any]:
    """Return what ``metrics.json`` says of a run on a split, and what it is a figure of.

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


def open_split(run: Run, settings: EvaluateConfig) -> CharDataModule:
    """Read a split of the run's corpus with the run's vocabulary; the training split is not read.

    Args:
        run: its configuration names the corpus and the limit that ``max_length=training`` means.
        settings: the split, and what differs from the training run.

    Raises:
        DataError: the split cannot be read, or holds a line longer than the model reads.
        UsageError: ``settings.data`` has an option that the corpus does not take.
    """
    options = {**run.config["data"], **_changes(settings.data, run.config["data"])}
    corpus = build_corpus(options)
    max_length = options["max_length"] if settings.max_length == "training" else settings.max_length
    split = cast(Split, settings.split)
    longest = _check_lengths(corpus, split, max_length, contracts.longest_input(run.model))
    data = CharDataModule(
        corpus,
        context=sys.maxsize,  # checked above, as the remedy is another than in training
        max_length=max_length,
        unknown=options["unknown"],
        batch_tokens=max(settings.batch_tokens, longest),  # a batch holds at least one line
        num_workers=0,
        seed=0,
        vocabulary=run.vocabulary,
    )
    data.setup({"valid": "validate", "test": "test"}[split])
    return data


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
        batches: of sized iterables such as a loader the number is shown.
        device: where the model is.
        task: of the model.
        show_progress: draw a bar in the terminal.
    """
    total, sums = Average().to(device), task.load_module().sums
    for batch in tracked(batches, "evaluating", show_progress):
        there = Batch(*(tensor.to(device) for tensor in batch))
        total.update(*sums(model(there.inputs), there))
    return total


def tracked(batches: Iterable[Batch], doing: str, show_progress: bool) -> Iterator[Batch]:
    """Pass the batches on, beside a bar in the terminal if it is to be shown."""
    with Progress(transient=True) if show_progress else nullcontext() as progress:
        yield from progress.track(batches, description=doing) if progress else batches


def choose_device(accelerator: str) -> torch.device:
    """Return the device that ``auto``, ``cpu`` or ``gpu`` means here.

    Raises:
        UsageError: ``gpu`` on a machine without one.
    """
    available = torch.cuda.is_available()
    if accelerator == "gpu" and not available:
        raise UsageError(
            "accelerator=gpu: torch finds no CUDA device here; use accelerator=cpu, or install torch for CUDA"
        )
    return torch.device("cuda" if available and accelerator != "cpu" else "cpu")


def figures_table(run: Run, split: str, metrics: Mapping[str, Any]) -> Table:
    """Lay out what was measured and on what, one fact a row."""
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
        table.add_row(what, Text(value))
    return table


def _describe(node: Mapping[str, Any]) -> str:
    """A class without its package, and its options."""
    kind = node["_target_"].rpartition(".")[2]
    hidden = ("_target_", "_partial_", "reads")
    options = ", ".join(f"{name}={value}" for name, value in node.items() if name not in hidden)
    return f"{kind} ({options})" if options else kind


def _changes(changed: Mapping[str, Any], trained: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data options to change (not null), all of them options that the run's corpus has."""
    known = [name for name in trained if not name.startswith("_") and (name not in LOADER_KEYS or name == "unknown")]
    changed = {name: value for name, value in changed.items() if value is not None}
    for name in changed:
        if name in ("max_length", "batch_tokens"):
            raise UsageError(f"data.{name}: here it is {name}, without data.")
        if name not in known:
            raise UsageError(f"data.{name}: the run's corpus has no such option; it has {', '.join(known)}")
    return changed


def _check_lengths(corpus: Corpus, split: Split, max_length: int | None, limit: int | None) -> int:
    """Return the tokens of the longest line of at most `max_length`; refuse a line longer than `limit`."""
    longest = 0
    for i, line in enumerate(corpus.lines(split)):
        tokens = len(line) + 1
        if max_length is not None and tokens > max_length:
            continue
        if limit is not None and tokens > limit:
            raise DataError(
                f"{split}, {corpus.source(split, i)}: {tokens} tokens, end symbol counted, but the model reads at "
                f"most {limit}; leave such lines out with max_length={limit} (another protocol)"
            )
        longest = max(longest, tokens)
    if not longest:
        raise DataError(f"max_length={max_length}: no line of {split}, {corpus.source(split)}, is that short; raise it")
    return longest
