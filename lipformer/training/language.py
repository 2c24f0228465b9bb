"""Training of language models: the objective is the negative log-likelihood of the next character."""

from jaxtyping import Float
from torch import Tensor

from lipformer.data.collate import Batch
from lipformer.tasks import LANGUAGE
from lipformer.telemetry.objective import sum_nats
from lipformer.training.task_module import Sums, TaskModule


class LanguageModule(TaskModule):
    """Trains a model that maps ids (B, N) to logits (B, N, V); the objective is in nats per token."""

    task = LANGUAGE

    @staticmethod
    def sums(outputs: Float[Tensor, "B N V"], batch: Batch) -> Sums:
        """Return the nats of the batch, and the number of its tokens.

        Args:
            outputs: the logits of the next symbol at each position.
            batch: with the targets.
        """
        return sum_nats(outputs, batch.targets)
