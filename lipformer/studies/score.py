"""Evaluate a trained model on a split of its corpus, from its checkpoint alone, or let it write sentences."""

import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import cast

from rich.text import Text

from lipformer.config import EvaluateConfig
from lipformer.data.corpus import Split
from lipformer.errors import UsageError
from lipformer.models.generate import sample
from lipformer.runs import layout
from lipformer.runs.folder import write_metrics
from lipformer.studies.evaluation import METRIC_PREFIX, measure, metrics_table, split_metrics
from lipformer.studies.loading import choose_device, open_run, open_split, record_environment, split_loader
from lipformer.system.atomic import replace_text
from lipformer.system.terminal import wide_console
from lipformer.system.text import visible
from lipformer.tasks import task_of

log = logging.getLogger(__name__)


class ScoreStudy:
    """``study=score``: the measures of a run's task on a split, such as nats and bits per character, or sentences."""

    def run(self, settings: EvaluateConfig, folder: Path) -> float | None:
        """Evaluate a run on a split or, if ``generate.samples`` is above 0, let it write sentences.

        The model is computed in float32, and the folder of the run is only read.

        Args:
            settings: the validated configuration.
            folder: the folder of this evaluation.

        Returns:
            The objective of the run's task, such as nats per character; None for sentences.

        Raises:
            CheckpointError: there is no checkpoint, or it is truncated, unsafe or inconsistent; it predicts nan.
            DataError: the split cannot be read, or holds a line longer than the model reads.
            UsageError: an option of `settings` does not fit the run or the machine.
        """
        if settings.generate.samples:
            write_sentences(settings, folder)
            return None
        return score(settings, folder)


def score(settings: EvaluateConfig, folder: Path) -> float:
    """Evaluate a run on a split, print the metrics, and write ``metrics.json`` into `folder`.

    It holds the measures of the run's task, ``<prefix>/nats_per_char`` and ``<prefix>/bits_per_char``, and
    ``<prefix>/tokens`` (prefix ``val`` or ``test``), and what they were measured on.
    Arguments and errors as for :meth:`ScoreStudy.run`.

    Returns:
        The objective of the run's task, such as nats per character.
    """
    device = choose_device(settings.accelerator)
    run = open_run(settings)
    run.model.to(device)
    data = open_split(run, settings)
    record_environment(folder, data)
    split = cast(Split, settings.split)
    log.info("evaluating %s on %s", run.path, data.protocol(split))
    loader = split_loader(data, split)
    measured = measure(run.model, loader, device=device, task=task_of(run.config), show_progress=sys.stdout.isatty())
    metrics = split_metrics(run, data, split, measured)
    write_metrics(folder, metrics)
    wide_console().print(metrics_table(run, split, metrics))
    log.info("metrics: %s", folder / layout.METRICS_JSON)
    return metrics[task_of(run.config).metric(METRIC_PREFIX[split])]


def write_sentences(settings: EvaluateConfig, folder: Path) -> None:
    """Let a run write sentences, print them, and write ``samples.json`` into `folder`; no corpus is read.

    Arguments and errors as for :meth:`ScoreStudy.run`.
    """
    device = choose_device(settings.accelerator)
    run = open_run(settings)
    task = task_of(run.config)
    if not task.generates:
        raise UsageError(f"generate.samples={settings.generate.samples}: a model of task={task.name} writes no text")
    run.model.to(device)
    record_environment(folder, None, settings.generate.seed)
    log.info("%s writes", run.path)
    generate = asdict(settings.generate)
    sentences = sample(run.model, run.vocabulary, **generate)
    file = folder / layout.SAMPLES
    kept = {**generate, "sentences": sentences}
    replace_text(file, json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
    console = wide_console()
    for number, sentence in enumerate(sentences, start=1):
        console.print(Text(f"{number:>{len(str(len(sentences)))}}  {visible(sentence)}"), soft_wrap=True)
    log.info("sentences: %s", file)
