r"""Statistics of attention weights: how evenly each token attends, and how sensitive its weights are to its scores.

Legend: B sentences, H heads, N tokens, D width; P_i is row i of the attention weights (those of token i), and n_i the
number of tokens that token i sees: i + 1 under a causal mask (i counts from 0), else N.
"""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lipformer import theorems
from lipformer.functional.precision import at_least_float32
from lipformer.modules import contracts
from lipformer.modules.attention.scored import ScoredAttention, SoftmaxAttention
from lipformer.modules.contexts import eval_mode
from lipformer.modules.contracts import Attends, HasScores
from lipformer.modules.walk import Passage
from lipformer.runs.metric_names import TOTAL


@torch.no_grad()
def attention_statistics(layer: nn.Module, x: Float[Tensor, "B N D"]) -> dict[str, Float[Tensor, ""]]:
    r"""Measure the attention weights of one layer at the tokens ``x``, in eval mode and before dropout.

    ========================= =========================================================================================
    entropy                   :math:`H_i = -\sum_j P_{ij} \log P_{ij}` in nats: mean over rows, heads, sentences
    entropy_min               lowest H_i
    entropy_share             mean of :math:`H_i / \log n_i`: 1 for uniform rows, 0 for one-hot rows
    entropy_share_lowest_head the same mean of the head in which it is lowest
    weights_frobenius         :math:`\|P\|_F`: mean over heads and sentences
    largest_weight            mean of :math:`\max_j P_{ij}`
    logit_variance            mean over rows of the variance of the scores of the n_i tokens seen (divided by n_i)
    softmax_jacobian_norm     mean of :math:`\|\mathrm{diag}(P_i) - P_i P_i^\top\|_2`, at most 1/2
    softmax_jacobian_norm_max largest of these norms
    ========================= =========================================================================================

    All but ``entropy`` and ``weights_frobenius`` are taken over the rows with n_i >= 2. In sigmoid and kernel attention
    the weights of a row need not sum to 1: the entropies are those of the row divided by its sum, and rows whose sum is
    0 are left out of the four.

    Args:
        layer: has ``attention_weights(x)`` (`contracts.Attends`). If it also has ``attention_scores(x)``
            (`contracts.HasScores`), ``logit_variance`` is measured; if it is a
            :class:`~lipformer.modules.attention.scored.SoftmaxAttention`, so are the norms of the Jacobian. A layer
            without an attribute ``causal`` counts as causal.
        x: tokens of B sentences of one length.

    Returns:
        The quantities by name, each on the layer's device and in its precision, but at least float32; the device is
        not waited for. Empty for a layer without ``attention_weights``. nan where no row counts (N = 1) or an input is
        nan.
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
    attending = sums != 0  # true for nan, so that it shows in the result
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


@torch.no_grad()
def attention_by_layer(passed: Mapping[str, Passage]) -> dict[str, Float[Tensor, ""]]:
    """Measure the attention weights of all branches that have any.

    Args:
        passed: what `lipformer.telemetry.layers.pass_through` returned.

    Returns:
        ``<layer>/<quantity>`` for the quantities of `attention_statistics`; ``total/entropy_share``, the mean of
        ``entropy_share`` over the layers, and ``total/entropy_share_lowest_layer``, the lowest of them.
    """
    by_layer = {
        name: attention_statistics(passage.place.module, passage.x)
        for name, passage in passed.items()
        if passage.place.role == "branch"
    }
    found = {f"{name}/{quantity}": value for name, values in by_layer.items() for quantity, value in values.items()}
    if shares := [values["entropy_share"] for values in by_layer.values() if values]:
        found[f"{TOTAL}/entropy_share"] = torch.stack(shares).mean()
        found[f"{TOTAL}/entropy_share_lowest_layer"] = torch.stack(shares).amin()
    return found


def _variance(scores: Float[Tensor, "B H N N"], seen: Float[Tensor, " N"], causal: bool) -> Float[Tensor, "B H N"]:
    """Return the variance of each row over the tokens that it sees."""
    mean = (scores.tril() if causal else scores).sum(-1) / seen
    gaps = scores - mean.unsqueeze(-1)
    return (gaps.tril() if causal else gaps).square().sum(-1) / seen


def _mean(
    values: Float[Tensor, "B H N"], counted: Bool[Tensor, "B H N"], dim: tuple[int, ...] | None = None
) -> Float[Tensor, "*rest"]:
    """Return the mean of the values where `counted` is true, over `dim` or all of them; nan if there are none."""
    return values.where(counted, 0).sum(dim) / counted.sum(dim)


def _lowest(values: Float[Tensor, "*shape"], counted: Bool[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """Return the lowest of the values where `counted` is true; nan if there are none."""
    return values.where(counted, math.inf).amin().where(counted.any(), math.nan)
