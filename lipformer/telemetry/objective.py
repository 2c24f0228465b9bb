"""The loss over a whole split, which must not depend on how the split is divided into batches."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric

from lipformer.data.collate import IGNORE


def sum_nats(logits: Float[Tensor, "B N V"], targets: Int[Tensor, "B N"]) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """Return the negative log-likelihood summed over the batch, in nats, and the number of tokens summed.

    Args:
        logits: of the next symbol at each position; the computation is in float32 at least, the sum in float64.
        targets: index of the next symbol; `IGNORE` where there is none (padding).
    """
    logits = logits.flatten(0, 1)
    nats = F.cross_entropy(
        logits.float() if logits.dtype.itemsize < 4 else logits,
        targets.flatten(),
        ignore_index=IGNORE,
        reduction="none",
    )
    return nats.sum(dtype=torch.float64), (targets != IGNORE).sum()


class Average(Metric):
    r"""Mean of an objective over all predictions of a split.

    .. math:: \frac{\sum_b \mathrm{total}_b}{\sum_b \mathrm{count}_b}

    The sums over the batches b are kept in float64. A mean of the batches' means would depend on how the split is
    divided into batches.

    Args:
        sync_on_compute: whether `compute` adds up the sums of all ranks; False where each was given those of all.
    """

    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, *, sync_on_compute: bool = True) -> None:
        super().__init__(sync_on_compute=sync_on_compute)
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, total: Tensor, count: Tensor) -> None:
        """Add a batch.

        Args:
            total: the objective summed over the batch, such as its nats, ().
            count: number of predictions in the batch, such as its tokens, ().
        """
        self.total = self.total.double() + total.detach().double()  # `module.to(dtype)` casts the state too
        self.count += count

    def compute(self) -> Float[Tensor, ""]:
        """Return the mean over the batches added so far; nan if there are none."""
        return self.total / self.count
