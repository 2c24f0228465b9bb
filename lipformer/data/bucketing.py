"""Batches of sentences of nearly the same length, cut by a budget of tokens."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from torch.utils.data import Sampler

from lipformer.errors import DataError


class TokenBudgetBatchSampler(Sampler[list[int]]):
    r"""Length-sorted batches of at most ``batch_tokens`` padded tokens, in an order of (seed, epoch) alone.

    Sentences are sorted by length, those of equal length in a new random order each epoch, and cut greedily
    into batches with :math:`\max_i L_i \cdot B \le` ``batch_tokens``. The cuts depend on the lengths alone,
    so every epoch has the same number of batches; the batches are then shuffled. Nothing is drawn from a
    global generator.

    The batches are those of all processes of a training together, whatever their number; each process takes
    its share of every batch when it is collated (:func:`~lipformer.data.collate.collate`).

    Args:
        lengths: tokens of each sentence, its end symbol counted.
        batch_tokens: most tokens of a padded batch, B * N.
        seed: seed of the order.
        shuffle: False gives the batches of every epoch by increasing length, ties in the given order
            (evaluation).

    Raises:
        DataError: no sentence; a sentence longer than the budget.
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        batch_tokens: int,
        *,
        seed: int,
        shuffle: bool = True,
    ):
        self.lengths = np.asarray(lengths, dtype=np.int64)
        if len(self.lengths) == 0:
            raise DataError("there is no sentence to make batches of")
        if self.lengths.max() > batch_tokens:
            raise DataError(
                f"data.batch_tokens={batch_tokens} is less than the longest sentence's {self.lengths.max()}: "
                "raise it, or drop long lines with data.max_length"
            )
        self.batch_tokens = batch_tokens
        self.seed, self.shuffle = seed, shuffle
        self.epoch = 0
        self._skipped = 0
        self._cuts = _cut(np.sort(self.lengths), batch_tokens)

    @property
    def sampler(self) -> "TokenBudgetBatchSampler":
        """The sampler itself: Lightning calls ``set_epoch`` on ``batch_sampler.sampler`` only."""
        return self

    @property
    def padding_fraction(self) -> float:
        """Padded positions over all positions of an epoch's batches."""
        ordered = np.sort(self.lengths)
        positions = sum(ordered[stop - 1] * (stop - start) for start, stop in self._spans())
        return 1 - float(ordered.sum() / positions)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch whose order the next iterators follow; another epoch than before cancels :meth:`skip`."""
        if epoch != self.epoch:
            self.epoch, self._skipped = epoch, 0

    def skip(self, batches: int) -> None:
        """Leave out the first ``batches`` batches of the current epoch only, because they were trained on before.

        It holds for every iterator of this epoch, as a trainer may make one and throw it away.
        :meth:`__len__` stays the length of a whole epoch: Lightning counts the skipped batches as fetched.

        Raises:
            ValueError: the epoch has fewer batches.
        """
        if not 0 <= batches <= len(self):
            raise ValueError(f"cannot skip {batches} of an epoch of {len(self)} batches")
        self._skipped = batches

    def __len__(self) -> int:
        """Batches of a whole epoch, the same in every epoch."""
        return len(self._cuts) + 1

    def __iter__(self) -> Iterator[list[int]]:
        # A list, not a generator: the order is fixed here and now, whatever epoch is set before the first
        # batch.
        return iter(self._epoch_batches()[self._skipped :])

    def _epoch_batches(self) -> list[list[int]]:
        count = len(self.lengths)
        if self.shuffle:
            generator = np.random.default_rng((self.seed, self.epoch))
            ties, steps = generator.permutation(count), generator.permutation(len(self))
        else:
            ties, steps = np.arange(count), np.arange(len(self))
        order = ties[np.argsort(self.lengths[ties], kind="stable")]
        batches = np.split(order, self._cuts)
        return [batches[step].tolist() for step in steps]

    def _spans(self) -> Iterator[tuple[int, int]]:
        edges = [0, *self._cuts, len(self.lengths)]
        return pairwise(edges)


def _cut(ordered: np.ndarray, batch_tokens: int) -> list[int]:
    """Return the positions, within increasing lengths, at which a batch begins; the first, 0, is left out."""
    edges = [0]
    for position, length in enumerate(ordered.tolist()):
        if length * (position + 1 - edges[-1]) > batch_tokens:
            edges.append(position)
    return edges[1:]
