"""A DataLoader that begins where training stands, so that a resumed run sees the batches it would have seen."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from lipformer.data.bucketing import TokenBudgetBatchSampler
from lipformer.data.collate import Batch
from lipformer.data.sentences import Sentences


class ResumableLoader(DataLoader[Tensor]):
    """Batches of a :class:`TokenBudgetBatchSampler`, starting at the place that ``position`` returns.

    The place is asked for at the moment an iterator is made, and the sampler fixes the order at that moment
    too. Worker processes that fetch ahead, and a trainer that tells the epoch only after making the iterator
    (Lightning does, in the first epoch after a resume), therefore cannot change which batches come.

    Args:
        batch_sampler: gives the rows of each batch; it is told the epoch and what to skip.
        position: returns (epoch, batches of it already consumed), or None if there is no trainer to count
            them. Without it, or without a trainer, the sampler's own epoch is used.
        options: further arguments of ``DataLoader``.
    """

    dataset: Sentences
    batch_sampler: TokenBudgetBatchSampler

    def __init__(
        self,
        *args: Any,
        batch_sampler: TokenBudgetBatchSampler,
        position: Callable[[], tuple[int, int] | None] | None,
        **options: Any,
    ):
        # A generator of its own: making an iterator draws a seed for the workers, which otherwise comes from
        # the global generator and shifts every dropout mask after it.
        generator = torch.Generator().manual_seed(batch_sampler.seed)
        super().__init__(*args, batch_sampler=batch_sampler, generator=generator, **options)
        self.position = position

    def __iter__(self):
        if self.position is not None and (position := self.position()) is not None:
            epoch, batches = position
            self.batch_sampler.set_epoch(epoch)
            self.batch_sampler.skip(batches)
        return super().__iter__()

    def gather(self, numbers: Iterable[int]) -> Batch:
        """Return a batch of the sentences with these numbers, independently of where training stands."""
        return self.collate_fn([self.dataset[number] for number in numbers])

    # Lightning takes a loader with these two for one that can resume, and warns of any other. The position
    # itself is kept by the datamodule: Lightning does not restore a loader's state at the end of an epoch,
    # nor where a schedule has asked for the number of steps before.

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the datamodule keeps the position."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: the datamodule keeps the position."""
