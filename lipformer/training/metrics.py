"""Negative log-likelihood per character of a whole split, whatever its batches."""

import math

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


class NatsPerChar(Metric):
    r"""Mean negative log-likelihood over all tokens seen, in nats.

    .. math:: \frac{\sum_b \mathrm{nats}_b}{\sum_b \mathrm{tokens}_b}

    Sums are kept in float64 on CPU and GPU alike and added over ranks. A mean of batch means would depend on how the
    split was batched.
    """

    full_state_update = False
    nats: Tensor
    tokens: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("nats", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("tokens", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, nats: Tensor, tokens: Tensor) -> None:
        """Add a batch: its nats summed, and its tokens counted."""
        self.nats = self.nats.double() + nats.detach().double()  # `module.to(dtype)` has cast the state too
        self.tokens += tokens

    def compute(self) -> Float[Tensor, ""]:
        """Return the mean so far; nan before the first token."""
        return self.nats / self.tokens


def bits(nats: float) -> float:
    """Convert nats to bits."""
    return nats / math.log(2)
