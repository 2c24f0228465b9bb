"""Watches how stable a training is, layer by layer, and changes nothing about it."""

import json
import time
from pathlib import Path
from typing import Any, cast

import pytorch_lightning as pl
import torch
from jaxtyping import Int
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from lipformer.bounds.certificate import Certificate, certify
from lipformer.functional.eval_mode import eval_mode
from lipformer.functional.spectral import Norm, parse_norm
from lipformer.telemetry.attention import attention_statistics
from lipformer.telemetry.constants import LocalConstants, inversion_statistics, weight_norms
from lipformer.telemetry.layers import Passage, pass_through, range_statistics
from lipformer.telemetry.optimisation import TOTAL, UpdateWatch
from lipformer.telemetry.probe import probe_batch
from lipformer.training.module import LanguageModule

BRANCH = ".branch"


class StabilityMonitor(Callback):
    """Logs ``stability/<layer>/<quantity>`` and ``certificate/<layer>/<p>`` to every logger of the run.

    Gradients, parameters and updates are those of the training step; ranges, attention and constants are measured on
    the *probe*, a few sentences of valid that stay the same, in eval mode and uncompiled. Weights, random states and
    compiled code are left as they are, so that a run ends the same with and without it. On the first rank alone; what
    it measures needs no other rank.

    The first step and the last are measured whatever the periods.

    Args:
        every_n_steps: optimizer steps between two rows of what is cheap.
        dear_every_n_steps: and between two of norms of weights, local constants, certificates and inverses.
        sentences: of the probe.
        p: norm of certificates and local constants, "mixed", 2 or ``math.inf``.

    Raises:
        ValueError: a period or the number of sentences is below 1; unknown ``p``.

    Attributes:
        latest: the last value of each metric.
        seconds: spent here so far.
    """

    def __init__(self, every_n_steps: int, dear_every_n_steps: int, sentences: int, p: Norm | str):
        counts = {"every_n_steps": every_n_steps, "dear_every_n_steps": dear_every_n_steps, "sentences": sentences}
        for name, count in counts.items():
            if count < 1:
                raise ValueError(f"{name} must be at least 1, not {count}")
        self.latest: dict[str, float] = {}
        self.seconds = 0.0
        self._every, self._dear_every, self._sentences = every_n_steps, dear_every_n_steps, sentences
        self._p = parse_norm(p)
        self._probe: Int[Tensor, "B N"] | None = None
        self._updates: UpdateWatch | None = None
        self._constants: LocalConstants | None = None
        self._certificate: Certificate | None = None
        self._dear_at = -1

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Choose the probe."""
        if not trainer.is_global_zero:
            return
        loader: Any = trainer.datamodule.val_dataloader()  # type: ignore[attr-defined]
        end_id = loader.collate_fn.keywords["end_id"]
        self._probe = probe_batch(loader.dataset, self._sentences, end_id).to(pl_module.device)
        model = cast(LanguageModule, pl_module).model
        self._updates, self._constants = UpdateWatch(model), LocalConstants(model, self._p)

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Look at the gradients before they are clipped."""
        if self._updates is not None and _due(trainer.global_step + 1, self._every):
            started = time.perf_counter()
            self._updates.before()
            self.seconds += time.perf_counter() - started

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Measure and log what is due after this step."""
        cheap, dear = (_due(trainer.global_step, period) for period in (self._every, self._dear_every))
        if cheap or dear:
            self._measure(trainer, cast(LanguageModule, pl_module), cheap, dear)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Measure the final weights, and leave their certificate in the run folder."""
        if self._dear_at != trainer.global_step and trainer.global_step > 0:
            self._measure(trainer, cast(LanguageModule, pl_module), True, True)
        if self._certificate is not None:
            file = Path(trainer.default_root_dir) / "certificate.json"
            file.write_text(json.dumps(self._certificate.to_plain(), indent=2) + "\n", encoding="utf-8")

    def _measure(self, trainer: pl.Trainer, module: LanguageModule, cheap: bool, dear: bool) -> None:
        if self._probe is None or self._updates is None or self._constants is None:
            return
        started = time.perf_counter()
        found: dict[str, Tensor | float] = dict(self._updates.after())
        with torch.no_grad(), eval_mode(module.model):
            passed = pass_through(module.model, self._probe)
            if cheap:
                found.update(range_statistics(passed))
                found.update(_attention(passed))
            if dear:
                self._dear_at = trainer.global_step
                for name, passage in passed.items():
                    if name.endswith(BRANCH):
                        norms = weight_norms(passage.module)
                        found.update({f"{name}/{quantity}": value for quantity, value in norms.items()})
                constants = self._constants.measure(passed)
                found.update({f"{name}/local_lipschitz": value for name, value in constants.items()})
                found.update(inversion_statistics(module.model, passed))
        metrics = {f"stability/{name}": value for name, value in _to_floats(found).items()}
        if dear:
            metrics |= self._certify(module)
        metrics |= {"train/tokens": float(module.tokens_seen), "epoch": trainer.current_epoch}
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.global_step - 1)  # numbered as Lightning numbers a step's own row
            logger.save()
        self.latest.update(metrics)
        self.seconds += time.perf_counter() - started

    def _certify(self, module: LanguageModule) -> dict[str, float]:
        self._certificate = certify(module.model, self._p)
        name = str(self._certificate.p)
        bounds = {f"certificate/{row.name}/{name}": row.bound for row in self._certificate.rows}
        totals = {"trunk": self._certificate.trunk, "logits": self._certificate.logits}
        return bounds | {f"certificate/{part}/{name}": bound for part, bound in totals.items()}


def _due(step: int, period: int) -> bool:
    return step == 1 or step % period == 0


def _attention(passed: dict[str, Passage]) -> dict[str, Tensor]:
    """Statistics of each layer, and over the layers the mean share of entropy and the lowest."""
    found, shares = {}, []
    for name, passage in passed.items():
        if name.endswith(BRANCH):
            statistics = attention_statistics(passage.module, passage.x)
            found.update({f"{name}/{quantity}": value for quantity, value in statistics.items()})
            if "entropy_share" in statistics:
                shares.append(statistics["entropy_share"])
    if shares:
        found[f"{TOTAL}/entropy_share"] = torch.stack(shares).mean()
        found[f"{TOTAL}/entropy_share_lowest_layer"] = torch.stack(shares).amin()
    return found


def _to_floats(values: dict[str, Tensor | float]) -> dict[str, float]:
    """Move all tensors off the device at once."""
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    if not tensors:
        return cast(dict[str, float], values)
    numbers = torch.stack([value.double() for value in tensors.values()]).tolist()
    return {**cast(dict[str, float], values), **dict(zip(tensors, numbers, strict=True))}
