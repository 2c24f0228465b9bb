"""The callback that ends a diverged training, and keeps what is needed to find out why it diverged."""

import logging
from pathlib import Path
from typing import Any, cast

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from lipformer.data.collate import Batch
from lipformer.errors import DivergedError, one_line
from lipformer.options.callbacks import DivergenceGuardOptions
from lipformer.runs import layout
from lipformer.system.atomic import replacing
from lipformer.telemetry.diagnosis import nonfinite_gradient, nonfinite_output, nonfinite_parameter
from lipformer.training.task_module import TaskModule

log = logging.getLogger(__name__)


class DivergenceGuard(Callback):
    """Ends a run whose loss stays too high, and explains every divergence.

    A loss or gradient that is not finite ends the run at once: `TaskModule` raises the error, before a weight changes.
    Whatever the cause, this callback adds the first layer at fault to the reason. It also writes ``diverged.pt`` into
    the run folder, with the batch (``inputs``, ``targets``, ``lengths``), the ``step``, the ``layer`` and the
    ``reason``; the file loads with ``weights_only=True``.

    Args:
        loss_above, patience: as in :class:`~lipformer.options.callbacks.DivergenceGuardOptions`.

    Raises:
        ValueError: an option is out of its range.
    """

    def __init__(
        self,
        loss_above: float | None = DivergenceGuardOptions.loss_above,
        patience: int = DivergenceGuardOptions.patience,
    ):
        DivergenceGuardOptions.check(loss_above=loss_above, patience=patience)
        self._loss_above, self._patience = loss_above, patience
        self._steps_above = 0
        self._batch: Batch | None = None
        self._batch_index: int | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps in a row whose loss was too high."""
        return {"steps_above": self._steps_above}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore that number."""
        self._steps_above = state_dict["steps_above"]

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """Keep the batch, in case this step fails."""
        self._batch, self._batch_index = batch, batch_idx

    def on_validation_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int, *args: Any
    ) -> None:
        """Keep the first batch whose objective is not finite; it will end the run when the validation is over."""
        faulty = isinstance(outputs, Tensor) and not torch.isfinite(outputs)  # a user's own step may return nothing
        if faulty and self._batch_index is not None:
            self._batch, self._batch_index = batch, None

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Count the steps in a row whose loss is too high.

        Raises:
            DivergedError: there were `patience` of them.
        """
        if self._loss_above is None:
            return
        module = cast(TaskModule, pl_module)
        score = module.batch_score
        self._steps_above = self._steps_above + 1 if score > self._loss_above else 0
        if self._steps_above >= self._patience:
            first = trainer.global_step - self._steps_above
            raise DivergedError(
                f"the loss has been above {self._loss_above:g} {module.task.objective.long} since step {first} and is "
                f"{score:.3g} now: lower lr={module.lr:g}, or raise callbacks.divergence_guard.loss_above"
            )

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Find the faulty layer, save the batch, and mention both in the reason."""
        if not isinstance(exception, DivergedError) or self._batch is None:
            return
        reason = str(exception)
        try:
            layer = self._faulty_layer(trainer, cast(TaskModule, pl_module), self._batch)
            where = f"; first not finite: {layer}" if layer else "; every layer is finite"
            if layer is None and trainer.world_size > 1:
                where += " for the sentences of this process, see the logs of the others"
            exception.args = (f"{reason}{where}",)
            file = Path(trainer.default_root_dir) / layout.bad_batch_file(trainer.global_rank)
            tensors = {name: tensor.cpu() for name, tensor in self._batch._asdict().items()}
            with replacing(file) as stream:
                torch.save({**tensors, "step": trainer.global_step, "layer": layer, "reason": reason}, stream)
            exception.args = (f"{reason}{where}; its batch: {file.name} in the run folder",)
        except Exception as error:  # a full disk or a broken device must not hide the reason
            log.warning("the divergence could not be explained further: %s", one_line(error))

    def _faulty_layer(self, trainer: pl.Trainer, module: TaskModule, batch: Batch) -> str | None:
        """Return the first parameter, module or gradient that is not finite, running the batch once more; or None."""

        def forward() -> None:
            if self._batch_index is not None:  # a training batch
                module.on_train_batch_start(batch, self._batch_index)  # seeds that step's random numbers again
            with trainer.precision_plugin.train_step_context(), torch.compiler.set_stance("force_eager"):
                module.model(batch.inputs)

        model = module.model
        return nonfinite_parameter(model) or nonfinite_output(model, forward) or nonfinite_gradient(model)
