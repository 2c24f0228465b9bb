"""Means over a whole split, whatever its batches."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric

from lipformer.data.collate import IGNORE


def sum_nats(logits: Float[Tensor, "B N V"], targets: Int[Tensor, "B N"]) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """Return the negative log-likelihood summed over the batch, in nats, and the number of tokens summed.

    Args:
        logits: of the next symbol; computed with in float32 at least, and summed in float64.
        targets: the next symbol; `IGNORE` where there is none.
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
    r"""Mean of an objective over all that was predicted.

    .. math:: \frac{\sum_b \mathrm{total}_b}{\sum_b \mathrm{count}_b}

    Sums are kept in float64 on CPU and GPU alike and added over ranks. A mean of batch means would depend on how the
    split was batched.
    """

    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, total: Tensor, count: Tensor) -> None:
        """Add a batch: its objective summed, such as its nats, and its tokens counted."""
        self.total = self.total.double() + total.detach().double()  # `module.to(dtype)` has cast the state too
        self.count += count

    def compute(self) -> Float[Tensor, ""]:
        """Return the mean so far; nan before the first token."""
        return self.total / self.count
