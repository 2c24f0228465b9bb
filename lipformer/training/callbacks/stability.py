"""Watches how stable a training is, layer by layer, and changes nothing about it."""

import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytorch_lightning as pl
import torch
from jaxtyping import Int
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from lipformer.bounds.certificate import certify
from lipformer.errors import one_line
from lipformer.functional.spectral import Norm, parse_norm
from lipformer.modules.contexts import eval_mode
from lipformer.modules.walk import Passage
from lipformer.options.callbacks import StabilityOptions
from lipformer.runs import layout
from lipformer.runs.metric_names import CERTIFICATE, LOGITS, STABILITY, TOKENS, TOTAL, TRUNK, metric_name
from lipformer.system.atomic import replace_text
from lipformer.telemetry.attention import attention_statistics
from lipformer.telemetry.constants import LocalConstants, inversion_statistics, weight_norms
from lipformer.telemetry.layers import pass_through, range_statistics
from lipformer.telemetry.optimisation import UpdateWatch
from lipformer.telemetry.probe import probe_batch
from lipformer.training.callbacks.progress import last_step
from lipformer.training.task_module import TaskModule

log = logging.getLogger(__name__)


class StabilityMonitor(Callback):
    """Logs ``stability/<layer>/<quantity>`` and ``certificate/<layer>/<p>`` to every logger of the run.

    Gradients, parameters and updates are those of the training step; ranges, attention and constants are measured on
    the *probe*, a few sentences of valid that stay the same, in eval mode and uncompiled. Weights, random states and
    compiled code are left as they are, so that a run ends the same with and without it. On the first rank alone; what
    it measures needs no other rank. The probe is computed in the precision of the weights, without autocast.

    Step 1 and the last step are measured whatever the periods. A kind of measurement that fails, as on a part of a
    user's own that has no second derivative, is given up with a warning; it never ends the training.

    Args:
        every_n_steps, dear_every_n_steps, sentences, p: as in
            :class:`~lipformer.options.callbacks.StabilityOptions`.

    Raises:
        ValueError: one is out of its range.

    Attributes:
        latest: the last value of each metric.
        seconds: spent here so far.
    """

    def __init__(
        self,
        every_n_steps: int = StabilityOptions.every_n_steps,
        dear_every_n_steps: int = StabilityOptions.dear_every_n_steps,
        sentences: int = StabilityOptions.sentences,
        p: Norm | str = StabilityOptions.p,
    ):
        StabilityOptions.check(
            every_n_steps=every_n_steps, dear_every_n_steps=dear_every_n_steps, sentences=sentences, p=p
        )
        self.latest: dict[str, float] = {}
        self.seconds = 0.0
        self._every, self._dear_every, self._sentences = every_n_steps, dear_every_n_steps, sentences
        self._p = parse_norm(p)
        self._probe: Int[Tensor, "B N"] | None = None
        self._updates: UpdateWatch | None = None
        self._constants: LocalConstants | None = None
        self._given_up: set[str] = set()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Choose the probe."""
        if not trainer.is_global_zero:
            return
        loader: Any = trainer.datamodule.val_dataloader()  # type: ignore[attr-defined]
        end_id = loader.collate_fn.keywords["end_id"]
        self._probe = probe_batch(loader.dataset, self._sentences, end_id).to(pl_module.device)
        model = cast(TaskModule, pl_module).model
        self._updates, self._constants = UpdateWatch(model), LocalConstants(model, self._p)

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Look at the gradients before they are clipped."""
        if self._updates is not None and self._due(trainer, trainer.global_step + 1, self._every):
            started = time.perf_counter()
            self._try("sizes of updates", self._updates.before)
            self.seconds += time.perf_counter() - started

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Measure and log what is due after this step."""
        cheap, dear = (self._due(trainer, trainer.global_step, period) for period in (self._every, self._dear_every))
        if (cheap or dear) and self._probe is not None:
            started = time.perf_counter()
            self._measure(trainer, cast(TaskModule, pl_module), self._probe, cheap, dear)
            self.seconds += time.perf_counter() - started

    def _due(self, trainer: pl.Trainer, step: int, period: int) -> bool:
        return step == 1 or step % period == 0 or step == last_step(trainer)

    def _measure(
        self, trainer: pl.Trainer, module: TaskModule, probe: Int[Tensor, "B N"], cheap: bool, dear: bool
    ) -> None:
        assert self._updates is not None
        assert self._constants is not None
        model, constants = module.model, self._constants
        found: dict[str, Tensor | float] = dict(self._try("sizes of updates", self._updates.after))
        with torch.no_grad(), eval_mode(model):
            passed = self._try("passes of the probe", lambda: pass_through(model, probe))
            if cheap and passed:
                found.update(self._try("ranges", lambda: range_statistics(passed)))
                found.update(self._try("attention", lambda: _attention(passed)))
            if dear and passed:
                found.update(self._try("norms of weights", lambda: _norms(passed)))
                found.update(self._try("local Lipschitz constants", lambda: _constants(constants, probe[:1])))
                found.update(self._try("inverses", lambda: inversion_statistics(model, passed)))
        metrics = {f"{STABILITY}/{name}": value for name, value in _to_floats(found).items()}
        if dear:
            folder = Path(trainer.default_root_dir)
            metrics |= self._try("certificates", lambda: _certify(module, self._p, folder))
        metrics |= {TOKENS: float(module.tokens_seen), "epoch": trainer.current_epoch}
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.global_step - 1)  # numbered as Lightning numbers a step's own row
            logger.save()
        self.latest.update(metrics)

    def _try(self, what: str, measure: Callable[[], Mapping[str, Any] | None]) -> Mapping[str, Any]:
        if what in self._given_up:
            return {}
        try:
            return measure() or {}
        except Exception as error:  # of whatever a user's own part raises
            self._given_up.add(what)
            log.warning("stability: %s are not measured any more: %s", what, one_line(error))
            return {}


def _norms(passed: Mapping[str, Passage]) -> dict[str, Tensor]:
    branches = {name: passage.place.module for name, passage in passed.items() if passage.place.role == "branch"}
    return {
        f"{name}/{norm}": value for name, branch in branches.items() for norm, value in weight_norms(branch).items()
    }


def _constants(constants: LocalConstants, ids: Int[Tensor, "B N"]) -> dict[str, Tensor]:
    return {f"{name}/local_lipschitz": value for name, value in constants.measure(ids).items()}


def _certify(module: TaskModule, p: Norm, folder: Path) -> dict[str, float]:
    """Certify the model, and leave its latest certificate in the run folder."""
    certificate = certify(module.model, p)
    replace_text(folder / layout.CERTIFICATE, json.dumps(certificate.to_plain(), indent=2) + "\n")
    bounds = {row.name: row.bound for row in certificate.rows}
    totals = {TRUNK: certificate.trunk, LOGITS: certificate.logits}
    return {metric_name(CERTIFICATE, certificate.p, name): bound for name, bound in {**bounds, **totals}.items()}


def _attention(passed: Mapping[str, Passage]) -> dict[str, Tensor]:
    """Statistics of each layer, and over the layers the mean share of entropy and the lowest."""
    found, shares = {}, []
    for name, passage in passed.items():
        if passage.place.role == "branch":
            statistics = attention_statistics(passage.place.module, passage.x)
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
