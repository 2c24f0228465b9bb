"""From sentences of different lengths to one rectangular batch of inputs and targets."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

IGNORE = -100
"""Target of a padded position, where nothing is predicted; ``cross_entropy`` ignores it by default."""


class Share(NamedTuple):
    """Which sentences of a batch a process takes: those with numbers `rank`, `rank` + `ranks`, and so on."""

    rank: int
    """Number of the process, 0 .. ranks - 1."""
    ranks: int
    """Number of processes that train together."""


WHOLE = Share(0, 1)
"""The share of a process that trains alone."""


class Batch(NamedTuple):
    """B sentences, padded on the right to N = the most tokens any of them has.

    The share of one process among several may be empty, B = 0; N is that of the whole batch all the same.

    A NamedTuple, which Lightning moves between devices and a DataLoader pins without being told how.
    """

    inputs: Int[Tensor, "B N"]
    """The end symbol, then the characters. Padded positions hold 0, which is also the id of a character."""
    targets: Int[Tensor, "B N"]
    """The characters, then the end symbol: what follows each input; :data:`IGNORE` in padded positions."""
    lengths: Int[Tensor, " B"]
    """Tokens of each sentence, the end symbol counted. Masks are made from these, never from ``inputs != 0``."""


def collate(sentences: Sequence[Int[Tensor, " length"]], end_id: int, share: Share = WHOLE) -> Batch:
    """Pad sentences to a :class:`Batch`.

    The shares of all processes together are the rows of the whole batch: no sentence is missing or there twice, and
    each row is padded as in the whole batch, since what sees padding too, such as the first batch of an ``ActNorm``,
    must not depend on the number of processes. If the sentences are sorted by length, as those of
    :class:`~lipformer.data.bucketing.TokenBudgetBatchSampler` are, the tokens of two shares differ by the longest
    sentence at most.

    Args:
        sentences: for each sentence of the whole batch the ids of its characters, (L_i,) int64, without end symbols.
        end_id: id of the end symbol.
        share: which of the sentences the batch holds.

    Returns:
        A batch of shape (B, N), N = max(L_i) + 1 over all sentences, B the number of those of the share.
    """
    width = max(len(ids) for ids in sentences) + 1
    own = sentences[share.rank :: share.ranks]
    lengths = torch.tensor([len(ids) + 1 for ids in own], dtype=torch.int64)
    shape = len(own), width
    inputs, targets = torch.zeros(shape, dtype=torch.int64), torch.full(shape, IGNORE)
    inputs[:, 0] = end_id
    for row, ids in enumerate(own):
        inputs[row, 1 : len(ids) + 1] = ids
        targets[row, : len(ids)] = ids
        targets[row, len(ids)] = end_id
    return Batch(inputs, targets, lengths)
