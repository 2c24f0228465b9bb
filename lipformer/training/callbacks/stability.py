"""The callback that measures the stability of a training, layer by layer, without changing it."""

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytorch_lightning as pl
import torch
from jaxtyping import Int
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn

from lipformer.bounds.certificate import certify
from lipformer.errors import one_line
from lipformer.functional.spectral import Norm, parse_norm
from lipformer.modules.contexts import eval_mode
from lipformer.modules.walk import Passage
from lipformer.options.callbacks import StabilityOptions
from lipformer.runs import layout
from lipformer.runs.metric_names import CERTIFICATE, LOGITS, STABILITY, TOKENS, TRUNK
from lipformer.system.atomic import replace_text
from lipformer.telemetry.attention import attention_by_layer
from lipformer.telemetry.constants import LocalConstants, inversion_statistics, weight_norms_by_layer
from lipformer.telemetry.layers import pass_through, range_statistics
from lipformer.telemetry.optimisation import UpdateWatch
from lipformer.telemetry.probe import probe_batch
from lipformer.training.callbacks.progress import last_step
from lipformer.training.task_module import TaskModule

log = logging.getLogger(__name__)

UPDATES = "sizes of updates"


@dataclass(frozen=True)
class Snapshot:
    """A model after a step of its training, with what the measurements are made from.

    Attributes:
        model: in eval mode.
        probe: ids of the sentences that the model is measured on, (B, N).
        passed: what went through the layers for the probe (`lipformer.telemetry.layers.pass_through`); empty for a
            model that cannot be taken apart.
        updates: knows the gradients and parameters before the step.
        constants: knows the directions in which the local Lipschitz constants were found the last time.
        p: the norm of Lipschitz constants.
        folder: the run folder.
    """

    model: nn.Module
    probe: Int[Tensor, "B N"]
    passed: Mapping[str, Passage]
    updates: UpdateWatch
    constants: LocalConstants
    p: Norm
    folder: Path


@dataclass(frozen=True)
class Measurement:
    """One kind of measurement.

    Attributes:
        what: names it in the warning of a measurement that failed.
        measure: returns the metrics by name, without the group.
        expensive: whether it is made every ``expensive_every_n_steps``, not every ``every_n_steps``.
        group: first part of the metrics' names.
    """

    what: str
    measure: Callable[[Snapshot], Mapping[str, Tensor | float]]
    expensive: bool
    group: str = STABILITY


def certificates(snapshot: Snapshot) -> dict[str, float]:
    """Return the certified bound of each layer, of the trunk and of the logits, as ``<layer>/<p>``.

    The certificate is also left in ``certificate.json``, in place of the one before.
    """
    certificate = certify(snapshot.model, snapshot.p)
    replace_text(snapshot.folder / layout.CERTIFICATE, json.dumps(certificate.to_plain(), indent=2) + "\n")
    bounds = {row.name: row.bound for row in certificate.rows}
    totals = {TRUNK: certificate.trunk, LOGITS: certificate.logits}
    return {f"{name}/{certificate.p}": bound for name, bound in {**bounds, **totals}.items()}


MEASUREMENTS = (
    Measurement(UPDATES, lambda now: now.updates.after(), expensive=False),
    Measurement("ranges", lambda now: range_statistics(now.passed), expensive=False),
    Measurement("attention", lambda now: attention_by_layer(now.passed), expensive=False),
    Measurement("norms of weights", lambda now: weight_norms_by_layer(now.passed), expensive=True),
    Measurement(
        "local Lipschitz constants",
        lambda now: now.constants.measure(now.probe[:1]) if now.passed else {},
        expensive=True,
    ),
    Measurement("inverses", lambda now: inversion_statistics(now.model, now.passed), expensive=True),
    Measurement("certificates", certificates, expensive=True, group=CERTIFICATE),
)
"""All that is measured; a further kind of measurement is a further row."""


class StabilityMonitor(Callback):
    """Logs ``stability/<layer>/<quantity>`` and ``certificate/<layer>/<p>`` to every logger of the run.

    What is measured, and how often, stands in `MEASUREMENTS`. Gradients, parameters and updates are those of the
    training step. Ranges, attention and local constants are measured on the *probe*, a few sentences of valid that stay
    the same, in eval mode, uncompiled, and in the precision of the weights, without autocast. Weights, random states
    and compiled code are left as they are, so that a run ends the same with and without the monitor. With several
    processes the first one measures; it needs nothing from the others.

    Step 1 and the last step are measured whatever the periods. A kind of measurement that fails, as on a part of a
    user's own that has no second derivative, is given up with one warning; it never ends the training.

    Args:
        every_n_steps, expensive_every_n_steps, sentences, p: as in
            :class:`~lipformer.options.callbacks.StabilityOptions`.

    Raises:
        ValueError: an option is out of its range.

    Attributes:
        latest: the last value of each metric.
        seconds: the time that the measurements have taken so far.
    """

    def __init__(
        self,
        every_n_steps: int = StabilityOptions.every_n_steps,
        expensive_every_n_steps: int = StabilityOptions.expensive_every_n_steps,
        sentences: int = StabilityOptions.sentences,
        p: Norm | str = StabilityOptions.p,
    ):
        StabilityOptions.check(
            every_n_steps=every_n_steps, expensive_every_n_steps=expensive_every_n_steps, sentences=sentences, p=p
        )
        self.latest: dict[str, float] = {}
        self.seconds = 0.0
        self._every, self._expensive_every, self._sentences = every_n_steps, expensive_every_n_steps, sentences
        self._p = parse_norm(p)
        self._probe: Int[Tensor, "B N"] | None = None
        self._updates: UpdateWatch | None = None
        self._constants: LocalConstants | None = None
        self._given_up: set[str] = set()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Choose the probe, on the first rank."""
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
        """Measure the gradients before they are clipped."""
        if self._updates is not None and self._due(trainer, trainer.global_step + 1, self._every):
            started = time.perf_counter()
            self._try(UPDATES, self._updates.before)
            self.seconds += time.perf_counter() - started

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Make the measurements that are due after this step, and log them."""
        periods = (self._every, self._expensive_every)
        cheap, expensive = (self._due(trainer, trainer.global_step, period) for period in periods)
        if (cheap or expensive) and self._probe is not None:
            started = time.perf_counter()
            self._measure(trainer, cast(TaskModule, pl_module), self._probe, cheap, expensive)
            self.seconds += time.perf_counter() - started

    def _due(self, trainer: pl.Trainer, step: int, period: int) -> bool:
        """Return whether a measurement with this period, in steps, is due after `step` steps."""
        return step == 1 or step % period == 0 or step == last_step(trainer)

    def _measure(
        self, trainer: pl.Trainer, module: TaskModule, probe: Int[Tensor, "B N"], cheap: bool, expensive: bool
    ) -> None:
        """Make the measurements that are due, and hand their results to every logger."""
        assert self._updates is not None
        assert self._constants is not None
        model, folder = module.model, Path(trainer.default_root_dir)
        found: dict[str, Tensor | float] = {}
        with torch.no_grad(), eval_mode(model):
            passed = self._try("passes of the probe", lambda: pass_through(model, probe))
            snapshot = Snapshot(model, probe, passed, self._updates, self._constants, self._p, folder)
            for kind in MEASUREMENTS:
                if expensive if kind.expensive else cheap:
                    values = self._try(kind.what, partial(kind.measure, snapshot))
                    found.update({f"{kind.group}/{name}": value for name, value in values.items()})
        metrics = _to_floats(found)
        metrics |= {TOKENS: float(module.tokens_seen), "epoch": trainer.current_epoch}
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.global_step - 1)  # numbered as Lightning numbers a step's own row
            logger.save()
        self.latest.update(metrics)

    def _try(self, what: str, measure: Callable[[], Mapping[str, Any] | None]) -> Mapping[str, Any]:
        """Return what `measure` returns; if it fails, nothing, now and from then on, with one warning."""
        if what in self._given_up:
            return {}
        try:
            return measure() or {}
        except Exception as error:  # a part of a user's own may raise anything
            self._given_up.add(what)
            log.warning("stability: %s are not measured any more: %s", what, one_line(error))
            return {}


def _to_floats(values: dict[str, Tensor | float]) -> dict[str, float]:
    """Return the values as numbers; all tensors are moved off the device in one transfer."""
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    if not tensors:
        return cast(dict[str, float], values)
    numbers = torch.stack([value.double() for value in tensors.values()]).tolist()
    return {**cast(dict[str, float], values), **dict(zip(tensors, numbers, strict=True))}
