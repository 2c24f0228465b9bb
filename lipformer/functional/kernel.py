r"""Kernel attention, whose weights are products of features: as a matrix, and in time linear in the tokens.

.. math:: P_{ij} = \frac{\phi(q_i) \cdot \phi(k_j)}{\epsilon + \sum_l \phi(q_i) \cdot \phi(k_l)}, \qquad \phi \ge 0

Legend: N tokens, f features of a query or key, v columns of a value, C tokens of a chunk; sums over l run over the
tokens that i attends to. Everything is computed in float32 or float64, also under autocast: in half precision a sum
over many tokens would lose its small terms to rounding.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from lipformer.functional.precision import at_least_float32


def elu_features(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    r"""ELU + 1: x + 1 for x > 0, else e^x; positive, with a slope of at most one.

    References: Katharopoulos et al. 2020, eq. 7, arXiv 2006.16236.
    """
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


FEATURES: dict[str, Callable[[Tensor], Tensor]] = {"elu": elu_features, "relu": torch.relu}


def kernel_weights(
    query: Float[Tensor, "*batch N f"], key: Float[Tensor, "*batch N f"], *, eps: float, causal: bool
) -> Float[Tensor, "*batch N N"]:
    """Return P from features of queries and keys; each row sums to less than one, one without features to zero."""
    with torch.autocast(query.device.type, enabled=False):
        scores = at_least_float32(query) @ at_least_float32(key).mT
        scores = scores.tril() if causal else scores
        return scores / (scores.sum(-1, keepdim=True) + eps)


def kernel_attention(
    query: Float[Tensor, "*batch N f"],
    key: Float[Tensor, "*batch N f"],
    value: Float[Tensor, "*batch N v"],
    *,
    eps: float,
    causal: bool,
    chunk: int = 64,
) -> Float[Tensor, "*batch N v"]:
    """P times the values, from features of queries and keys, in O(N) time and memory.

    If ``causal``, tokens are processed in chunks of C: by a C x C matrix within a chunk, and by the sum of k v^T over
    all earlier chunks. This keeps N (C + f v / C) numbers; a running sum at each token would keep N f v.

    Args:
        query: features of the queries.
        key: features of the keys.
        value: values.
        eps: added to the denominators.
        causal: whether token i attends to tokens 0..i only; otherwise it attends to all.
        chunk: C, the number of tokens in a chunk.

    Returns:
        One vector per token, in the precision of the values.

    References: Katharopoulos et al. 2020, sec. 3.2 and 3.3, arXiv 2006.16236.
    """
    with torch.autocast(query.device.type, enabled=False):
        query, key = at_least_float32(query), at_least_float32(key)
        counted = F.pad(at_least_float32(value), (0, 1), value=1.0)  # the sums of this column of ones are denominators
        sums = _causal_sums(query, key, counted, chunk) if causal else query @ (key.mT @ counted)
        return (sums[..., :-1] / (sums[..., -1:] + eps)).to(value.dtype)


def _causal_sums(query: Tensor, key: Tensor, value: Tensor, chunk: int) -> Tensor:
    """Sum of (q_i . k_j) v_j over j <= i."""
    tokens = query.shape[-2]
    missing = -tokens % chunk
    query, key, value = (F.pad(t, (0, 0, 0, missing)).unflatten(-2, (-1, chunk)) for t in (query, key, value))
    states = (key.mT @ value).cumsum(-3)
    before = F.pad(states[..., :-1, :, :], (0, 0, 0, 0, 1, 0))  # sums over all earlier chunks
    sums = (query @ key.mT).tril() @ value + query @ before
    return sums.flatten(-3, -2)[..., :tokens, :]
