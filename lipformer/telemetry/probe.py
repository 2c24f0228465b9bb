"""The sentences that a model is watched on: always the same ones, so that figures can be compared over time."""

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from lipformer.data.collate import collate
from lipformer.data.sentences import Sentences


def probe_batch(sentences: Sentences, count: int, end_id: int) -> Int[Tensor, "B N"]:
    """Return the inputs of the sentences of about median length, cut to the shortest of them: no padding.

    Args:
        sentences: of a split; where there are fewer, all are taken.
        count: how many, B.
        end_id: what the first character is predicted from.
    """
    order = np.argsort(sentences.lengths, kind="stable")
    first = max(0, (len(order) - count) // 2)
    chosen = order[first : first + count]
    batch = collate([sentences[int(number)] for number in chosen], end_id)
    return batch.inputs[:, : int(torch.as_tensor(batch.lengths).min())]
