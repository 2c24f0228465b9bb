"""The two checkpoints of a run: the best, and the last from which it can go on."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint

from lipformer.assembly.checkpoint import is_whole
from lipformer.errors import DivergedError, WriteError
from lipformer.runs import layout
from lipformer.runs.folder import local_rank
from lipformer.runs.layout import BEST
from lipformer.system.atomic import replacing
from lipformer.telemetry.diagnosis import nonfinite_parameter
from lipformer.training.callbacks.stopping import InterruptedInStep

log = logging.getLogger(__name__)


class FiniteCheckpoint(ModelCheckpoint):
    """Writes no weights that hold nan or infinity: the run has diverged, whatever its validation says."""

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Look at the weights, then save them."""
        if name := nonfinite_parameter(pl_module):
            raise DivergedError(f"the weights are not finite at step {trainer.global_step}, first {name}: lower lr")
        super().on_validation_end(trainer, pl_module)


class BestCheckpoint(FiniteCheckpoint):
    """Keeps ``best.ckpt``; a continued run takes it along into its own folder.

    Lightning forgets the best score when the folder changes, and the first validation after that, however bad, would
    be the best.

    Args:
        folder: the run folder.
        resume_from: the checkpoint that is continued, if any.
        monitor: the metric that it is best in, the less the better.
    """

    def __init__(self, folder: Path, resume_from: Path | None, monitor: str):
        super().__init__(filename="best", monitor=monitor, **_options(folder))
        self._resume_from = resume_from

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy the old run's best checkpoint and take up its score."""
        assert self.dirpath is not None
        old = self._resume_from.parent / BEST if self._resume_from is not None else None
        if old is None or not old.is_file() or not state_dict["best_model_path"]:
            return
        if not is_whole(old):
            log.warning("%s is damaged and left out: the best of this run is the best from here on", old)
            return
        new = Path(self.dirpath) / BEST
        Path(self.dirpath).mkdir(parents=True, exist_ok=True)
        if local_rank() == 0:
            with old.open("rb") as original, replacing(new) as copy:
                shutil.copyfileobj(original, copy)
        score = state_dict["best_model_score"]
        moved = {"dirpath": self.dirpath, "best_model_path": str(new), "kth_best_model_path": str(new)}
        super().load_state_dict({**state_dict, **moved, "best_k_models": {str(new): score}, "last_model_path": ""})


class LastCheckpoint(FiniteCheckpoint):
    """Keeps ``last.ckpt``: after each validation, and when an error or a signal ends the run.

    Not when the run diverged: the state is then worth less than that of the last validation. The one before it is
    kept as ``previous.ckpt``.

    Args:
        folder: the run folder.
    """

    def __init__(self, folder: Path):
        super().__init__(filename="last", save_on_exception=True, save_on_train_epoch_end=False, **_options(folder))

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Save, unless the weights are not worth it."""
        if isinstance(exception, DivergedError):
            return
        if isinstance(exception, InterruptedInStep):
            log.warning("%s stays as it was: the training was stopped within a step", layout.LAST)
            return
        if name := nonfinite_parameter(pl_module):
            log.warning("%s stays as it was: the weights are not finite, first %s", layout.LAST, name)
            return
        try:
            super().on_exception(trainer, pl_module, exception)
        except WriteError as error:  # why the run ended stands
            log.warning("%s stays as it was: %s", layout.LAST, error)


def _options(folder: Path) -> dict[str, Any]:
    return {"dirpath": folder / layout.CHECKPOINTS, "auto_insert_metric_name": False, "enable_version_counter": False}
