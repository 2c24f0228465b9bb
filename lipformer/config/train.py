"""The root of `conf/train.yaml`."""

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from lipformer.config.model import keys_read, value_of
from lipformer.errors import UsageError
from lipformer.options.scalars import ScalarOptions

NO_REGULARIZER = "lipformer.training.regularizers.no_regularizer"


@dataclass
class TrainConfig(ScalarOptions):
    """Root of `conf/train.yaml`: the scalars and the groups."""

    task: Any = MISSING
    model: Any = MISSING
    attention: Any = MISSING
    norm: Any = MISSING
    residual: Any = MISSING
    feedforward: Any = MISSING
    position: Any = MISSING
    embedding: Any = MISSING
    linear: Any = MISSING
    data: Any = MISSING
    optimizer: Any = MISSING
    schedule: Any = MISSING
    regularizer: Any = MISSING
    trainer: Any = MISSING
    callbacks: Any = MISSING
    logger: Any = MISSING
    sweep: Any = MISSING

    def __post_init__(self) -> None:
        if "heads" in keys_read(self.model) and self.width % self.heads:
            raise UsageError(f"width={self.width}: it must be divisible by heads={self.heads}")
        if value_of(self.trainer, "compile") and value_of(self.regularizer, "_target_") != NO_REGULARIZER:
            raise UsageError(
                "trainer.compile=True does not go with a regularizer, which looks inside the model and takes second "
                "derivatives: take regularizer=none or trainer.compile=false"
            )
