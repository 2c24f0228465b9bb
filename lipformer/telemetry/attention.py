r"""What an attention layer attends to, in a few numbers: how even its rows are, and how they answer to their scores.

Legend: B sentences, H heads, N tokens, D width, P_i the weights of token i, n_i the tokens that it sees: i + 1 of them
if causal (counting from 0), else N.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lipformer import theorems
from lipformer.functional.precision import at_least_float32
from lipformer.modules import contracts
from lipformer.modules.attention.scored import ScoredAttention, SoftmaxAttention
from lipformer.modules.contexts import eval_mode
from lipformer.modules.contracts import Attends, HasScores


@torch.no_grad()
def attention_statistics(layer: nn.Module, x: Float[Tensor, "B N D"]) -> dict[str, Float[Tensor, ""]]:
    r"""Measure what ``layer`` attends to at ``x``, in eval mode and before dropout.

    ========================= =========================================================================================
    entropy                   :math:`H_i = -\sum_j P_{ij} \log P_{ij}` in nats: mean over rows, heads, sentences
    entropy_min               lowest H_i
    entropy_share             mean of :math:`H_i / \log n_i`: 1 of even rows, 0 of one-hot rows
    entropy_share_lowest_head the same of the head where it is lowest
    weights_frobenius         :math:`\|P\|_F`: mean over heads and sentences
    largest_weight            mean of :math:`\max_j P_{ij}`
    logit_variance            mean of the variance, over the n_i tokens seen, of the scores (divided by n_i)
    softmax_jacobian_norm     mean of :math:`\|\mathrm{diag}(P_i) - P_i P_i^\top\|_2`, at most 1/2
    softmax_jacobian_norm_max largest of the same
    ========================= =========================================================================================

    All but ``entropy`` and ``weights_frobenius`` are of rows with n_i >= 2. Entropies are of rows divided by their sum,
    which sigmoid and kernel attention need not have at one; rows of sum 0 have none and are left out of the four.

    Args:
        layer: with ``attention_weights(x)`` (`contracts.Attends`); ``attention_scores(x)`` (`contracts.HasScores`)
            gives ``logit_variance`` besides, and the Jacobian's norms are of a
            :class:`~lipformer.modules.attention.scored.SoftmaxAttention` alone. A layer that has no attribute
            ``causal`` is taken for causal.
        x: tokens of B sentences of one length.

    Returns:
        The quantities that the layer has, on its device, in its precision but at least float32; no number is waited
        for. {} for a layer without ``attention_weights``. nan where there are no rows to tell of (N = 1), and where a
        nan enters.
    """
    if not isinstance(layer, Attends):
        return {}
    with eval_mode(layer):
        scores = layer.attention_scores(x) if isinstance(layer, HasScores) else None
        if scores is not None and isinstance(layer, ScoredAttention):
            weights = layer.weights_from_scores(scores)
        else:
            weights = layer.attention_weights(x)
    weights, causal = at_least_float32(weights), contracts.causal(layer)
    tokens = weights.shape[-1]
    seen = torch.arange(1, tokens + 1, device=weights.device, dtype=weights.dtype)
    seen = seen if causal else torch.full_like(seen, tokens)
    choosing = (seen >= 2).expand(weights.shape[:-1])

    sums = weights.sum(-1)
    entropy = torch.special.entr(weights / sums.unsqueeze(-1)).sum(-1)
    attending = sums != 0  # true of nan, which is to be seen
    shares, compared = entropy / seen.log(), attending & choosing
    by_head = _mean(shares, compared, dim=(0, 2))
    statistics = {
        "entropy": _mean(entropy, attending),
        "entropy_min": _lowest(entropy, compared),
        "entropy_share": _mean(shares, compared),
        "entropy_share_lowest_head": _lowest(by_head, compared.any(2).any(0)),
        "weights_frobenius": torch.linalg.vector_norm(weights, dim=(-2, -1)).mean(),
        "largest_weight": _mean(weights.amax(-1), choosing),
    }
    if scores is not None:
        statistics["logit_variance"] = _mean(_variance(at_least_float32(scores), seen, causal), choosing)
    if isinstance(layer, SoftmaxAttention):
        norms = theorems.softmax_jacobian_norm(weights)
        statistics["softmax_jacobian_norm"] = _mean(norms, choosing)
        statistics["softmax_jacobian_norm_max"] = -_lowest(-norms, choosing)
    return statistics


def _variance(scores: Float[Tensor, "B H N N"], seen: Float[Tensor, " N"], causal: bool) -> Float[Tensor, "B H N"]:
    """Variance of each row over the tokens seen."""
    mean = (scores.tril() if causal else scores).sum(-1) / seen
    gaps = scores - mean.unsqueeze(-1)
    return (gaps.tril() if causal else gaps).square().sum(-1) / seen


def _mean(
    values: Float[Tensor, "B H N"], counted: Bool[Tensor, "B H N"], dim: tuple[int, ...] | None = None
) -> Float[Tensor, "*rest"]:
    """Mean of the values that count, nan if none does."""
    return values.where(counted, 0).sum(dim) / counted.sum(dim)


def _lowest(values: Float[Tensor, "*shape"], counted: Bool[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """Lowest of the values that count, nan if none does."""
    return values.where(counted, math.inf).amin().where(counted.any(), math.nan)
