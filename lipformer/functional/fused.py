r"""L2 attention by ``scaled_dot_product_attention``: the squared norms of the keys ride in an extra column.

A constant added to a row of scores cancels in the softmax, so with :math:`\tilde q = [q, 1]`,
:math:`\tilde k = [k, -\tfrac12\|k\|^2]` and scale 2/s the fused kernel computes

.. math:: \mathrm{softmax}_j\big(\tfrac2s\, \tilde q_i \cdot \tilde k_j\big)
          = \mathrm{softmax}_j\big(-\tfrac1s \|q_i - k_j\|^2\big)

The values are the queries: with V_h = q M_h the rest of the layer is P (q M_h) W^O_h = (P q) N_h,
N_h = M_h W^O_h, so one product with the stacked N_h does the work of the value and output projections.

Queries and keys are projected from differences to the first token: distances are the same, and their rounding is
smaller. Values are not, because a mean of such differences would cancel in turn. In half precision the norms are
those of the *rounded* keys, computed in float32 and stored as a sum of two columns: the result is then exact
L2 attention of slightly perturbed tokens, and each token stays nearest to itself.

The kernels have no second derivative: see :mod:`lipformer.functional.attention` for that.
Legend: B batch, N tokens, D width, H heads, d columns of a head, e > d columns with the extra ones.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lipformer.functional.precision import HALF, at_least_float32, linear_float32, working_dtype


def fused_tied_l2(
    x: Float[Tensor, "*batch N D"],
    query_weight: Float[Tensor, "C D"],
    head_outputs: Float[Tensor, "H d D"],
    *,
    s: float,
    causal: bool,
    slope: Float[Tensor, " H"] | None = None,
) -> Float[Tensor, "*batch N D"]:
    r"""Tied L2 attention, :math:`F(X) = \sum_h P^h X W_h N_h` with scores :math:`-\|x_i W_h - x_j W_h\|^2 / s`.

    Args:
        x: tokens.
        query_weight: the W_h in ``nn.Linear`` layout, C = H d.
        head_outputs: N_h, value map and output projection in one.
        s: divisor of the squared distances.
        causal: whether token i sees only tokens 0..i, or all.
        slope: m_h, of a penalty of m_h (i - j) on the scores of past tokens; with ``causal`` only. It is free:
            m_h j joins the norm in the extra column, and m_h i is constant in a row.

    Returns:
        One vector per token, in the precision of the projections (under autocast, autocast's).

    References: Kim et al. 2021, sec. 3, arXiv 2006.04710; the folding is ours (docs/mathematics.md, 5).
    """
    heads, d, _ = head_outputs.shape
    origin = x[..., :1, :].detach()  # any constant gives the same scores, so its gradient is zero
    queries = _padded_projection(x - origin, query_weight, heads)
    bias = None if slope is None else _position_bias(queries, slope * (s / 2))
    keys = _NormColumns.apply(queries, None, bias, d)
    first_query = linear_float32(origin, query_weight).unflatten(-1, (heads, d))
    return _attend(queries, keys, _shift(queries, first_query), head_outputs, s, causal)


def fused_l2(
    x: Float[Tensor, "*batch N D"],
    query_weight: Float[Tensor, "C D"],
    key_weight: Float[Tensor, "C D"],
    head_outputs: Float[Tensor, "H d D"],
    *,
    s: float,
    causal: bool,
) -> Float[Tensor, "*batch N D"]:
    r"""L2 attention with keys of their own, :math:`F(X) = \sum_h P^h X W^Q_h N_h`.

    Distances allow one *common* shift of queries and keys. Keys are centred by the first key k_0; the
    queries, centred by the first query q_0, then lack :math:`\delta = q_0 - k_0`, whose share of the
    scores, :math:`\delta \cdot k_j`, joins the norm in the extra column.

    Arguments and result as in :func:`fused_tied_l2`, with ``key_weight`` for the keys.
    """
    heads, d, _ = head_outputs.shape
    origin = x[..., :1, :].detach()
    queries = _padded_projection(x - origin, query_weight, heads)
    first_query, first_key = (
        linear_float32(origin, weight).unflatten(-1, (heads, d)) for weight in (query_weight, key_weight)
    )
    keys = _NormColumns.apply(_padded_projection(x - origin, key_weight, heads), first_query - first_key, None, d)
    return _attend(queries, keys, _shift(queries, first_query), head_outputs, s, causal)


def _padded_projection(x: Tensor, weight: Tensor, heads: int) -> Tensor:
    """Project to (..., N, H, e): d columns, then as many ones as the keys' norms need columns, then zeros.

    Padding the weight and letting the bias write the ones is free; a ``cat`` would copy the activations.
    """
    d = weight.shape[0] // heads
    norms = _norm_columns(working_dtype(x))
    columns = _round_up(d + norms, x.device.type)
    bias = weight.new_zeros(heads, columns)
    bias[:, d : d + norms] = 1
    padded = F.pad(weight.unflatten(0, (heads, d)), (0, 0, 0, columns - d))
    return F.linear(x, padded.flatten(0, 1), bias.flatten()).unflatten(-1, (heads, columns))


def _round_up(columns: int, device_type: str) -> int:
    """Round up to a multiple of 8 on CUDA, whose kernels would copy otherwise; the CPU is fastest without padding."""
    return -(-columns // 8) * 8 if device_type == "cuda" else columns


def _norm_columns(dtype: torch.dtype) -> int:
    """Return the number of columns for a squared norm: half precision needs two, a high and a low part."""
    return 2 if dtype in HALF else 1


class _NormColumns(torch.autograd.Function):
    """Write -|k|^2/2 (+ gap . k) over the ones of padded (..., N, H, e) keys.

    Out of slices and ``cat``, autograd would make a backward pass that fills twice the memory with zeros.
    """

    @staticmethod
    def forward(ctx, padded: Tensor, gap: Tensor | None, bias: Tensor | None, d: int) -> Tensor:
        ctx.save_for_backward(padded, gap)
        ctx.d, ctx.bias_shape = d, None if bias is None else bias.shape
        keys = at_least_float32(padded[..., :d])
        column = keys.square().sum(-1) * -0.5
        if gap is not None:
            column += (gap * keys).sum(-1)
        if bias is not None:
            column += bias
        result = padded.clone()
        result[..., d] = column
        if _norm_columns(padded.dtype) == 2:
            result[..., d + 1] = column - result[..., d]
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        # The high and the low part meet the same ones, so either's gradient is that of their sum. What is
        # returned for the ones themselves is immaterial: they come from a constant bias and zero weights.
        padded, gap = ctx.saved_tensors
        column = gradient[..., ctx.d : ctx.d + 1]
        of_bias = None
        if ctx.bias_shape is not None:
            of_bias = at_least_float32(column.squeeze(-1)).sum_to_size(ctx.bias_shape)
        result = torch.addcmul(gradient, padded, column, value=-1)
        if gap is None:
            return result, None, of_bias, None
        result[..., : ctx.d] += column * gap
        of_gap = (column * padded[..., : ctx.d]).sum(-3, keepdim=True).to(gap.dtype)
        return result, of_gap, of_bias, None


def _position_bias(queries: Tensor, slope: Tensor) -> Float[Tensor, "N H"]:
    """slope j; counted from the last token, whose nearness matters most, to keep rounding small there."""
    tokens = queries.shape[-3]
    position = torch.arange(1 - tokens, 1, device=queries.device, dtype=at_least_float32(slope).dtype)
    return position[:, None] * at_least_float32(slope)


def _shift(queries: Tensor, first_query: Tensor) -> Tensor:
    """Return the values: queries of the tokens themselves, not of their differences to the first.

    The first query is added before it is rounded: a rounding common to all tokens would survive the averaging.
    """
    extra = queries.shape[-1] - first_query.shape[-1]
    return (queries + F.pad(first_query, (0, extra))).to(queries.dtype)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, head_outputs: Tensor, s: float, causal: bool) -> Tensor:
    """Attend, then multiply what each head gathered by its N_h, which is zero for the extra columns."""
    queries, keys, values = (tokens.transpose(-3, -2) for tokens in (queries, keys, values))
    mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=causal, scale=2 / s)
    stacked = F.pad(head_outputs, (0, 0, 0, values.shape[-1] - head_outputs.shape[1])).flatten(0, 1)
    return mixed.transpose(-3, -2).flatten(-2) @ stacked.to(mixed.dtype)
