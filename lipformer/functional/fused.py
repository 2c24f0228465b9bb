r"""L2 attention by ``scaled_dot_product_attention``: the squared norms of the keys ride in an extra column.

A constant added to a row of scores cancels in the softmax, so with :math:`\tilde q = [q, 1]`,
:math:`\tilde k = [k, -\tfrac12\|k\|^2]` and scale 2/s the fused kernel computes

.. math:: \mathrm{softmax}_j\big(\tfrac2s\, \tilde q_i \cdot \tilde k_j\big)
          = \mathrm{softmax}_j\big(-\tfrac1s \|q_i - k_j\|^2\big)

The values are the queries: with V_h = q M_h the rest of the layer is P (q M_h) W^O_h = (P q) N_h,
N_h = M_h W^O_h, so one product with the stacked N_h does the work of the value and output projections.

Tokens enter relative to the first one, x_0, which distances do not notice but rounding does. In half
precision the norms are those of the *rounded* keys, computed in float32 and stored as a sum of two columns:
the result is then exact L2 attention of slightly perturbed tokens, and each token stays nearest to itself.

The kernels have no second derivative: see :mod:`lipformer.functional.attention` for that.
Legend: B batch, N tokens, D width, H heads, d columns of a head, e > d columns with the extra ones.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from lipformer.functional.heads import at_least_float32


def fused_tied_l2(
    x: Float[Tensor, "B N D"],
    query_weight: Float[Tensor, "C D"],
    head_outputs: Float[Tensor, "H d D"],
    *,
    s: float,
    causal: bool,
) -> Float[Tensor, "B N D"]:
    r"""Tied L2 attention, :math:`F(X) = \sum_h P^h X W_h N_h` with scores :math:`-\|x_i W_h - x_j W_h\|^2 / s`.

    Args:
        x: tokens.
        query_weight: the W_h in ``nn.Linear`` layout, C = H d.
        head_outputs: N_h, value map and output projection in one.
        s: divisor of the squared distances.
        causal: whether token i sees only tokens 0..i, or all.

    Returns:
        One vector per token, in the precision of the projections (under autocast, autocast's).

    References: Kim et al. 2021, sec. 3, arXiv 2006.04710; the folding is ours (docs/mathematics.md, 5).
    """
    heads, d, _ = head_outputs.shape
    origin = x[:, :1]
    queries = _queries(x - origin, query_weight, heads)
    keys = _keys(queries[..., :d], queries)
    return _attend(queries, keys, F.linear(origin, query_weight), head_outputs, s, causal)


def fused_l2(
    x: Float[Tensor, "B N D"],
    query_weight: Float[Tensor, "C D"],
    key_weight: Float[Tensor, "C D"],
    head_outputs: Float[Tensor, "H d D"],
    *,
    s: float,
    causal: bool,
) -> Float[Tensor, "B N D"]:
    r"""L2 attention with keys of their own, :math:`F(X) = \sum_h P^h X W^Q_h N_h`.

    Distances allow one *common* shift of queries and keys. Keys are centred by the first key k_0; the
    queries, centred by the first query q_0, then lack :math:`\delta = q_0 - k_0`, whose share of the
    scores, :math:`\delta \cdot k_j`, joins the norm in the extra column.

    Arguments and result as in :func:`fused_tied_l2`, with ``key_weight`` for the keys.
    """
    heads, d, _ = head_outputs.shape
    origin = x[:, :1]
    queries = _queries(x - origin, query_weight, heads)
    first_query = F.linear(origin, query_weight)
    gap = at_least_float32(first_query) - at_least_float32(F.linear(origin, key_weight))
    keys = _keys(
        F.linear(x - origin, key_weight).unflatten(-1, (heads, d)), queries, gap.unflatten(-1, (heads, d))
    )
    return _attend(queries, keys, first_query, head_outputs, s, causal)


def _queries(x: Tensor, weight: Tensor, heads: int) -> Tensor:
    """Project to (B, N, H, e): d columns, then as many ones as the keys' norms need columns, then zeros.

    Padding the weight and letting the bias write the ones is free; a ``cat`` would copy the activations.
    """
    d = weight.shape[0] // heads
    low = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
    norms = 2 if low in (torch.bfloat16, torch.float16) else 1
    # The CUDA kernels want multiples of 8 and would otherwise copy; the CPU's is fastest without padding.
    columns = -(-(d + norms) // 8) * 8 if x.is_cuda else d + norms
    bias = weight.new_zeros(heads, columns)
    bias[:, d : d + norms] = 1
    padded = F.pad(weight.unflatten(0, (heads, d)), (0, 0, 0, columns - d))
    return F.linear(x, padded.flatten(0, 1), bias.flatten()).unflatten(-1, (heads, columns))


def _keys(keys: Tensor, like: Tensor, gap: Tensor | None = None) -> Tensor:
    """Append to (B, N, H, d) keys the column(s) -|k|^2/2 (+ gap . k), and zeros up to the width of ``like``."""
    with torch.autocast(keys.device.type, enabled=False):
        full = at_least_float32(keys)
        column = -0.5 * full.square().sum(-1, keepdim=True)
        if gap is not None:
            column = column + (gap * full).sum(-1, keepdim=True)
        high = column.to(keys.dtype)
        parts = [keys, high]
        if keys.dtype != full.dtype:
            parts.append((column - high).to(keys.dtype))
        missing = like.shape[-1] - keys.shape[-1] - len(parts) + 1
        if missing:
            parts.append(keys.new_zeros(*keys.shape[:-1], missing))
        return torch.cat(parts, -1)


def _attend(
    queries: Tensor, keys: Tensor, first_query: Tensor, head_outputs: Tensor, s: float, causal: bool
) -> Tensor:
    """Attend with the queries as values, map each head by its N_h, and add back what the centring took away."""
    mixed = F.scaled_dot_product_attention(
        queries.transpose(1, 2), keys.transpose(1, 2), queries.transpose(1, 2), is_causal=causal, scale=2 / s
    )
    extra = queries.shape[-1] - head_outputs.shape[1]
    stacked = F.pad(head_outputs, (0, 0, 0, extra)).flatten(0, 1).to(mixed.dtype)
    # Rows of the attention matrix sum to one, so the first token's share passes through unmixed.
    return mixed.transpose(1, 2).flatten(2) @ stacked + first_query @ head_outputs.flatten(0, 1).to(mixed.dtype)
