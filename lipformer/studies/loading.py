"""What a study of a trained model needs: the device, the run, and a split of its corpus."""

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch

from lipformer.assembly.build import LOADER_KEYS, build_corpus
from lipformer.assembly.checkpoint import Run, load_run
from lipformer.config import EvaluateConfig
from lipformer.data.corpus import Corpus, Split
from lipformer.data.datamodule import CharDataModule
from lipformer.data.fingerprint import changed_splits
from lipformer.data.resumable_loader import ResumableLoader
from lipformer.errors import DataError, UsageError
from lipformer.modules import contracts
from lipformer.runs.environment import add_environment
from lipformer.system.source import typed_command
from lipformer.training.environment import describe_environment

log = logging.getLogger(__name__)


def open_run(settings: EvaluateConfig) -> Run:
    """Load the run that ``checkpoint`` names, on the CPU, and set the number of threads.

    Raises:
        CheckpointError: there is no checkpoint, or it is truncated, unsafe or inconsistent.
    """
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    return load_run(cast(str, settings.checkpoint), which=settings.which, allow_targets=settings.allow_targets)


def choose_device(accelerator: str) -> torch.device:
    """Return the device that ``auto``, ``cpu`` or ``gpu`` means on this machine.

    Raises:
        UsageError: ``gpu`` on a machine without one.
    """
    available = torch.cuda.is_available()
    if accelerator == "gpu" and not available:
        raise UsageError(
            "accelerator=gpu: torch finds no CUDA device here; use accelerator=cpu, or install torch for CUDA"
        )
    return torch.device("cuda" if available and accelerator != "cpu" else "cpu")


def open_split(run: Run, settings: EvaluateConfig) -> CharDataModule:
    """Read a split of the run's corpus with the run's vocabulary; the training split is not read.

    Args:
        run: a run, whose configuration names the corpus and the limit that ``max_length=training`` means.
        settings: name the split and the options that differ from those of the training.

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
        context=sys.maxsize,  # checked above, because the remedy differs from that in a training
        max_length=max_length,
        unknown=options["unknown"],
        batch_tokens=max(settings.batch_tokens, longest),  # a batch holds at least one line
        num_workers=0,
        seed=0,
        vocabulary=run.vocabulary,
    )
    data.setup({"valid": "validate", "test": "test"}[split])
    moved = any(value is not None for value in settings.data.values())  # another text may be meant
    if not moved and (changed := changed_splits(run.fingerprints, data.fingerprints)):
        log.warning("this is another text than that of the training, do not compare their figures: %s", changed)
    return data


def record_environment(folder: Path, data: CharDataModule | None, seed: int | None = None) -> None:
    """Write ``environment.json`` of an evaluation.

    Args:
        folder: the folder of the evaluation.
        data: the text that is read, if any.
        seed: the seed, if anything is random.

    Raises:
        WriteError: the file cannot be written.
    """
    fingerprints = {} if data is None else data.fingerprints
    add_environment(folder, describe_environment(seed=seed, fingerprints=fingerprints, command=typed_command()))


def split_loader(data: CharDataModule, split: Split) -> ResumableLoader:
    """Return the batches of a split that :func:`open_split` has read."""
    return data.val_dataloader() if split == "valid" else data.test_dataloader()


def _changes(changed: Mapping[str, Any], trained: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data options that are not null, after checking that the run's corpus has them."""
    known = [name for name in trained if not name.startswith("_") and (name not in LOADER_KEYS or name == "unknown")]
    changed = {name: value for name, value in changed.items() if value is not None}
    for name in changed:
        if name in ("max_length", "batch_tokens"):
            raise UsageError(f"data.{name}: here it is {name}, without data.")
        if name not in known:
            raise UsageError(f"data.{name}: the run's corpus has no such option; it has {', '.join(known)}")
    return changed


def _check_lengths(corpus: Corpus, split: Split, max_length: int | None, limit: int | None) -> int:
    """Return the length of the longest line of at most `max_length` tokens; refuse one longer than `limit`."""
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
