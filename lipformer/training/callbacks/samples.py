"""The callback that lets the model write sentences when its training ends."""

import json
import logging
from pathlib import Path
from typing import Any, cast

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from lipformer.errors import one_line
from lipformer.models.generate import sample
from lipformer.modules import contracts
from lipformer.options.callbacks import SamplesOptions
from lipformer.runs import layout
from lipformer.system.atomic import replace_text
from lipformer.training.loggers.choices import log_samples
from lipformer.training.task_module import TaskModule

log = logging.getLogger(__name__)

SEED = 0


class Samples(Callback):
    """Writes sampled sentences to ``samples.json`` in the run folder, and to the loggers that take text.

    Args:
        sentences, temperature, max_chars: as in :class:`~lipformer.options.callbacks.SamplesOptions`.

    Raises:
        ValueError: an option is out of its range.
    """

    def __init__(
        self,
        sentences: int = SamplesOptions.sentences,
        temperature: float = SamplesOptions.temperature,
        max_chars: int = SamplesOptions.max_chars,
    ):
        SamplesOptions.check(sentences=sentences, temperature=temperature, max_chars=max_chars)
        self._sentences, self._temperature, self._max_chars = sentences, temperature, max_chars

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Sample from the final weights, on the first rank. A failure is a warning, since the training is complete."""
        if not trainer.is_global_zero or not cast(TaskModule, pl_module).task.generates:
            return
        try:
            self._write(trainer, cast(TaskModule, pl_module))
        except Exception as error:
            log.warning("no samples were written: %s", one_line(error))

    def _write(self, trainer: pl.Trainer, module: TaskModule) -> None:
        """Sample the sentences, and write and log them."""
        data, longest = cast(Any, trainer).datamodule, contracts.longest_input(module.model)
        with torch.compiler.set_stance("force_eager"):  # else each length of a sentence could be compiled
            sentences = sample(
                module.model,
                data.vocabulary,
                samples=self._sentences,
                temperature=self._temperature,
                seed=SEED,
                max_chars=self._max_chars if longest is None else min(self._max_chars, longest - 1),
            )
        written = {
            "step": trainer.global_step,
            "tokens": module.tokens_seen,
            "temperature": self._temperature,
            "seed": SEED,
            "sentences": sentences,
        }
        file = Path(trainer.default_root_dir) / layout.SAMPLES
        replace_text(file, json.dumps(written, indent=2, ensure_ascii=False) + "\n")
        log_samples(trainer.loggers, sentences, trainer.global_step, module.tokens_seen)
