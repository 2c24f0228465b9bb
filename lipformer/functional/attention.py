r"""Attention in explicit form, as scores and a masked softmax; differentiable to any order.

Legend: B batch, H heads, N tokens, d columns of a head, s the divisor of the squared distances.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from lipformer.functional.precision import at_least_float32


def dot_product_scores(
    query: Float[Tensor, "*batch N d"], key: Float[Tensor, "*batch N d"]
) -> Float[Tensor, "*batch N N"]:
    r"""Scaled dot products, :math:`q_i \cdot k_j / \sqrt d`.

    References: Vaswani et al. 2017, eq. 1, arXiv 1706.03762.
    """
    return query @ key.mT / query.shape[-1] ** 0.5


def l2_scores(
    query: Float[Tensor, "*batch N d"], key: Float[Tensor, "*batch N d"], s: float
) -> Float[Tensor, "*batch N N"]:
    r"""Negative squared distances, up to a constant in each row, which softmax ignores.

    .. math:: L_{ij} = \frac{2\, q_i \cdot k_j - \|k_j\|^2}{s} = -\frac{\|q_i - k_j\|^2}{s} + \frac{\|q_i\|^2}{s} .

    The first key is subtracted from all queries and keys. Distances do not change, but without the shift a large
    vector common to all tokens would cancel between the two terms and leave its rounding error. (The first key is
    used rather than the mean because every row sees it under a causal mask.) For the same reason half precision
    is cast up to float32, also under autocast.

    References: Kim et al. 2021, sec. 3, arXiv 2006.04710.
    """
    with torch.autocast(query.device.type, enabled=False):
        query, key = at_least_float32(query), at_least_float32(key)
        origin = key[..., :1, :].detach()  # the scores do not depend on it, so it may be a constant to autograd
        query, key = query - origin, key - origin
        return (2 * query @ key.mT - key.square().sum(-1).unsqueeze(-2)) / s


def penalise_distance(
    scores: Float[Tensor, "*batch H N N"], slope: Float[Tensor, " H"]
) -> Float[Tensor, "*batch H N N"]:
    r"""Subtract :math:`m_h |i - j|` from the scores, so that a token counts less the further away it is.

    References: Press, Smith, Lewis 2022 (ALiBi), arXiv 2108.12409; under L2 attention it also lowers the Lipschitz
    constant (`theorems.local_mass`).
    """
    position = torch.arange(scores.shape[-1], device=scores.device)
    distance = (position[:, None] - position).abs()
    return scores - slope[:, None, None] * distance


def masked_softmax(scores: Float[Tensor, "*batch N N"], causal: bool) -> Float[Tensor, "*batch N N"]:
    """Softmax over keys; if causal, a token attends only to itself and to earlier tokens.

    The diagonal is never masked. Otherwise a row could be empty, and L2 attention would not be Lipschitz: a token's
    distance to itself, which is zero, keeps the mean distance of a row bounded.
    """
    if causal:
        tokens = scores.shape[-1]
        future = torch.ones(tokens, tokens, dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return scores.softmax(-1)
