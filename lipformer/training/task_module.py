"""The Lightning module that trains a model on any task: its steps, the sums behind its metrics, its optimizer."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import pytorch_lightning as pl
import torch
from jaxtyping import Float
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from lipformer.data.collate import Batch
from lipformer.errors import DivergedError
from lipformer.runs.metric_names import TOKENS, TRAIN, VALID, metric_name
from lipformer.tasks import Task
from lipformer.telemetry.objective import Average
from lipformer.training.loop_progress import align_loop_progress, was_validated
from lipformer.training.parameter_groups import parameter_groups
from lipformer.training.regularizers import Regularized, no_regularizer

Sums = tuple[Float[Tensor, ""], Float[Tensor, ""]]
"""The objective summed over a batch, in float64, and the number of predictions in the sum."""


class TaskModule(pl.LightningModule):
    """Trains a model on the objective of a task, a mean over all predictions.

    Each task has a subclass that states `task` and `sums`.

    Args:
        model: the network.
        optimizer: called with the parameter groups; returns the optimizer.
        schedule: returns the learning-rate factor of an optimizer step.
        regularizer: called with the model and a batch; returns the model's outputs, and a penalty to add to the loss,
            a mean over the sentences of the batch, or None.
        checkpoint_extras: plain containers, stored in each checkpoint under ``lipformer``.
        seed: seed of the random numbers that each step draws (dropout).
        log_every_steps: optimizer steps between two rows of training metrics.

    Attributes:
        tokens_seen: number of tokens, or of what else the task predicts, that all ranks have trained on so far.
        batch_score: mean of the objective over the last training batch, of all ranks together.
        validated_step: the step at which the last validation was made and its best checkpoint saved, if any.
        stopped_before_validation: whether the weights of the checkpoint that is continued were not validated.
    """

    task: ClassVar[Task]

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizer: Callable[..., Optimizer],
        schedule: Callable[[int], float],
        checkpoint_extras: Mapping[str, Any],
        seed: int,
        log_every_steps: int,
        regularizer: Callable[[Any, Batch], Regularized] = no_regularizer,
    ):
        super().__init__()
        self.model: Any = model  # torch types attributes of modules as tensors
        self.train_average = Average(sync_on_compute=False)  # it is given the sums over all ranks
        self.val_average = Average()
        self.tokens_seen = 0
        self.batch_score = 0.0
        self.validated_step: int | None = None
        self.stopped_before_validation = False
        self._optimizer = optimizer
        self._schedule = schedule
        self._regularizer = regularizer
        self._penalty: Tensor | None = None
        self._extras = dict(checkpoint_extras)
        self._seed = seed
        self._log_every_steps = log_every_steps

    @staticmethod
    @abstractmethod
    def sums(outputs: Any, batch: Batch) -> Sums:
        """Return the objective summed over a batch, and the number of predictions in the sum.

        Training, validation and evaluation add up these sums, so that no metric depends on the division into batches.

        Args:
            outputs: what the model returned for ``batch.inputs``.
            batch: with the targets.
        """

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seed the random numbers of this step from seed, epoch, batch and rank; a continued run then repeats them."""
        torch.manual_seed(hash((self._seed, self.current_epoch, batch_idx, self.global_rank)) % 2**63)

    def training_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, ""]:
        """Return the loss: the mean of the objective over the batch, plus the regularizer's penalty.

        With several ranks it is their mean that is the loss of the whole batch, which the ranks share.

        Raises:
            DivergedError: the loss or the penalty is not finite, on whichever rank.
        """
        rows, ranks = len(batch.inputs), self.trainer.world_size
        # A rank without a sentence takes part with a loss of zero; no regularizer has to think of it.
        outputs, penalty = self._regularizer(self.model, batch) if rows else (self.model(batch.inputs), None)
        total, count = self.sums(outputs, batch)
        mine = [total.detach(), count, rows, 0.0 if penalty is None else rows * penalty.detach()]
        # Summed over all ranks, so that either all of them go on or none does.
        sums = self.trainer.strategy.reduce(
            torch.stack([torch.as_tensor(number, dtype=torch.float64, device=total.device) for number in mine]),
            reduce_op="sum",
        )
        all_total, all_counted, all_rows, all_penalties = sums.tolist()
        self.batch_score = all_total / all_counted
        if not math.isfinite(self.batch_score):
            raise DivergedError(f"the loss became {self.batch_score} at step {self.global_step}: lower lr={self.lr:g}")
        self.train_average.update(sums[0], sums[1].long())
        # Lightning averages the gradients over ranks. Multiplied by the number of ranks and divided by the tokens of
        # all of them, the average is the mean over tokens, however many of them each rank has; so it is for penalties
        # with sentences.
        self.tokens_seen += int(all_counted)
        loss = total * ranks / int(all_counted)
        if not math.isfinite(all_penalties):
            remedy = f"lower lr={self.lr:g}" if self.global_step else "the regularizer does not suit this model"
            raise DivergedError(f"the penalty became {all_penalties / all_rows} at step {self.global_step}: {remedy}")
        if penalty is None:
            return loss
        self._penalty = sums[3] / sums[2]
        return loss + penalty * (rows * ranks / all_rows)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Log the norm of the gradient before clipping, and the other metrics of the training.

        Raises:
            DivergedError: the gradient is not finite.
        """
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.parameters() if p.grad is not None])
        if not torch.isfinite(norm) and not self._scaler_answers():
            raise DivergedError(f"the gradient became {norm.item()} at step {self.global_step}: lower lr={self.lr:g}")
        if (self.global_step + 1) % self._log_every_steps == 0:
            self.log(metric_name(TRAIN, "gradient_norm"), norm)
            self.log(self.task.metric("train"), self.train_average.compute().float())
            if self._penalty is not None:
                self.log(metric_name(TRAIN, "regularizer"), self._penalty.float())
            self.log(metric_name(TRAIN, "lr"), self.lr)
            self.log(TOKENS, float(self.tokens_seen))
            self.train_average.reset()

    def _scaler_answers(self) -> bool:
        """Return whether a gradient that is not finite is left to the loss scaler of float16.

        The scaler skips a step whose scaled gradient overflows, and lowers its scale. It also raises the scale from
        time to time until a step overflows, so an overflow is no divergence unless the scale is at its lowest.
        """
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        return scaler is not None and scaler.get_scale() > 1

    def validation_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, ""]:
        """Add the batch to the sums of the split, and return the objective summed over the batch."""
        total, count = self.sums(self.model(batch.inputs), batch)
        self.val_average.update(total, count)
        return total

    def on_validation_epoch_end(self) -> None:
        """Log the task's measures of the whole split.

        Raises:
            DivergedError: the objective is not finite.
        """
        score = self.val_average.compute()
        self.val_average.reset()
        if not torch.isfinite(score):
            raise DivergedError(
                f"the validation became {score.item()} at step {self.global_step}: lower lr={self.lr:g}"
            )
        self.log(TOKENS, float(self.tokens_seen))  # the x axis of every row
        self.log(self.task.metric("val"), score)
        for measure in self.task.derived:
            self.log(metric_name(VALID, measure.name), measure.of(float(score)))

    @property
    def lr(self) -> float:
        """Learning rate of the next step."""
        return self.trainer.optimizers[0].param_groups[0]["lr"]

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return the optimizer, and the schedule of its learning rate, which advances with each step."""
        optimizer = self._optimizer(parameter_groups(self.model))
        scheduler = LambdaLR(optimizer, self._schedule)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what is needed to rebuild the run from the checkpoint alone, and the sums of the training metrics."""
        sums = {
            "tokens_seen": self.tokens_seen,
            "nats": float(self.train_average.total),  # by the names of version 0.1.0, whatever the task
            "tokens": int(self.train_average.count),
            "validated": self.validated_step == self.global_step,
        }
        checkpoint["lipformer"] = {**self._extras, **sums}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the sums of the training metrics, and whether a validation was due or under way.

        Such a validation is made again from its beginning, since its sums are not in the checkpoint.
        """
        extras = checkpoint["lipformer"]
        self.tokens_seen = extras["tokens_seen"]
        self.train_average.update(torch.tensor(extras["nats"], dtype=torch.float64), torch.tensor(extras["tokens"]))
        self.stopped_before_validation = not was_validated(checkpoint)
        self.validated_step = None if self.stopped_before_validation else checkpoint["global_step"]
        align_loop_progress(checkpoint, cast(int, self.trainer.val_check_interval))
        validation = checkpoint["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
        for counts in (validation["current"], validation["total"]):
            counts.update(dict.fromkeys(counts, 0))
