"""Encoded lines, held in one flat tensor, so that worker processes share its memory instead of copying it."""

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import Dataset


class Sentences(Dataset[Tensor]):
    """Sentences of different lengths; item ``i`` is the ids of sentence ``i`` without end symbols, (L_i,) int64.

    Args:
        encoded: for each sentence the ids of its characters.
    """

    def __init__(self, encoded: Iterable[list[int]]):
        rows = [np.asarray(ids, dtype=np.int64) for ids in encoded]
        counts = np.array([len(row) for row in rows], dtype=np.int64)
        self.lengths: np.ndarray = counts + 1
        """Length of each sentence in tokens, its end symbol counted, (number of sentences,) int64."""
        self._ends: list[int] = counts.cumsum().tolist()
        self._ids: Int[Tensor, " characters"] = torch.from_numpy(np.concatenate([np.empty(0, np.int64), *rows]))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Int[Tensor, " length"]:
        end = self._ends[index]
        return self._ids[end - int(self.lengths[index]) + 1 : end]

    @property
    def tokens(self) -> int:
        """Tokens of all sentences: their characters, and one end symbol each."""
        return int(self.lengths.sum())
