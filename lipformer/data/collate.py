"""From sentences of different lengths to one rectangular batch of inputs and targets."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

IGNORE = -100
"""Target of a padded position, where nothing is predicted; ``cross_entropy`` ignores it by default."""


class Batch(NamedTuple):
    """B sentences, padded on the right to N = the most tokens any of them has.

    A NamedTuple, which Lightning moves between devices and a DataLoader pins without being told how.
    """

    inputs: Int[Tensor, "B N"]
    """The end symbol, then the characters. Padded positions hold 0, which is also the id of a character."""
    targets: Int[Tensor, "B N"]
    """The characters, then the end symbol: what follows each input; :data:`IGNORE` in padded positions."""
    lengths: Int[Tensor, " B"]
    """Tokens of each sentence, the end symbol counted. Masks are made from these, never from ``inputs != 0``."""


def collate(sentences: Sequence[Int[Tensor, " length"]], end_id: int) -> Batch:
    """Pad sentences to a :class:`Batch`.

    Args:
        sentences: for each of B sentences the ids of its characters, (L_i,) int64, without end symbols.
        end_id: id of the end symbol.

    Returns:
        A batch of shape (B, N), N = max(L_i) + 1.
    """
    lengths = torch.tensor([len(ids) + 1 for ids in sentences])
    shape = len(sentences), int(lengths.max())
    inputs, targets = torch.zeros(shape, dtype=torch.int64), torch.full(shape, IGNORE)
    inputs[:, 0] = end_id
    for row, ids in enumerate(sentences):
        inputs[row, 1 : len(ids) + 1] = ids
        targets[row, : len(ids)] = ids
        targets[row, len(ids)] = end_id
    return Batch(inputs, targets, lengths)
