"""The probe: the sentences on which a model is watched, always the same ones, so that values compare over time."""

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from lipformer.data.collate import collate
from lipformer.data.sentences import Sentences


def probe_batch(sentences: Sentences, count: int, end_id: int) -> Int[Tensor, "B N"]:
    """Return the model's inputs for the sentences in the middle of a split, ordered by length.

    All are cut to the length of the shortest of them, so that there is no padding.

    Args:
        sentences: the split.
        count: number of sentences, B; all of them, if the split has fewer.
        end_id: index of the end symbol, which stands before the first character.
    """
    order = np.argsort(sentences.lengths, kind="stable")
    first = max(0, (len(order) - count) // 2)
    chosen = order[first : first + count]
    batch = collate([sentences[int(number)] for number in chosen], end_id)
    return batch.inputs[:, : int(torch.as_tensor(batch.lengths).min())]
