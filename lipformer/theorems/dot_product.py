r"""Lipschitz constants of dot-product attention, which has none on all inputs: on a ball of tokens, and at one input.

Legend, in the layout of ``x W``: N tokens, D width, H heads, v columns of a value head; A_h = W^Q_h W^K_h^T / s
(D x D), so that the scores are :math:`x_i A_h x_j^\top`; W^V_h (D x v); W^O (H v x D); R the largest Euclidean norm of
a token; a_h = |A_h|_2.

The layer is F(X) = [P^1 X W^V_1, ..., P^H X W^V_H] W^O with P^h = softmax(X A_h X^T), each token seeing all or, if
causal, itself and what came before. Without a limit on the tokens it is not Lipschitz. Proofs: docs/mathematics.md, 12.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lipformer.functional import spectral
from lipformer.functional.attention import masked_softmax
from lipformer.functional.spectral import Norm, parse_norm
from lipformer.theorems.heads import combine_heads


def dot_product_bound_on_ball(
    score_map: Float[Tensor, "H D D"],
    value: Float[Tensor, "H D v"],
    out: Float[Tensor, "E D"],
    radius: float | Float[Tensor, ""],
    length: int,
    p: Norm,
    causal: bool,
) -> Float[Tensor, ""]:
    r"""Constant on the inputs with all :math:`\|x_i\|_2 \le R`.

    With :math:`\alpha_h = a_h R^2`, in the mixed norm and in the 2-norm :func:`combine_heads` of

    .. math:: \|W^V_h\|_2 \Big(\sqrt{1 + \alpha_h^2} + \alpha_h\Big) \qquad\text{and}\qquad
              \|W^V_h\|_2 \Big(\kappa_h \sqrt{1 + \alpha_h^2} + \alpha_h\Big),

    where :math:`\kappa_h^2` bounds the column sums of P, :math:`N / (1 + (N-1)e^{-2\alpha_h})` without a mask and
    :math:`\sum_{i=1}^N 1 / (1 + (i-1)e^{-2\alpha_h})` if causal; there :math:`2e^{2\alpha_h}(1 + 2\alpha_h)`, which is
    free of N, also serves for :math:`\kappa_h \sqrt{1 + \alpha_h^2}`. In the inf-norm, with
    :math:`c_{he}` column e of :math:`W^V_h W^O_h` and :math:`\beta(A)` a bound on :math:`\max_{\|x\|_2=1} \|Ax\|_1`,

    .. math:: \max_e \sum_h \Big( \|c_{he}\|_1 + R^2 \big(\beta(A_h) + \beta(A_h^\top)\big) \|c_{he}\|_2 \Big), \qquad
              \beta(A) = \min\Big\{\sqrt D\, \|A\|_2,\ \sum_k \|A_{k\cdot}\|_2\Big\}.

    Args:
        score_map: the A_h.
        value: the W^V_h.
        out: W^O, E = H v.
        radius: R.
        length: N; shorter inputs are included. Only the 2-norm depends on it.
        p: 2, ``math.inf`` or "mixed".
        causal: whether token i sees only tokens up to i.

    Returns:
        float64; infinity if R or a weight is not finite.

    References: ours. Castin, Ablin, Peyré, ICML 2024, arXiv 2312.14820, bound the 2-norm on balls, with sqrt(N) and
    with an exponential of R; Hardy's inequality gives the third form.
    """
    p = parse_norm(p)
    if length < 1:
        raise ValueError(f"length must be at least 1, not {length}")
    score_map, value, out = score_map.double(), value.double(), out.double()
    square = torch.as_tensor(radius, dtype=torch.float64, device=out.device).square()
    if p == math.inf:
        bound = _inf_bound_on_ball(score_map, value, out, square)
    else:
        spread = spectral.exact(score_map) * square
        averaged = (1 + spread.square()).sqrt()
        if p == 2:
            averaged = averaged * _largest_column_sum(spread, length, causal).sqrt()
            if causal:
                averaged = torch.minimum(averaged, 2 * (2 * spread).exp() * (1 + 2 * spread))
        bound = combine_heads(spectral.exact(value) * (averaged + spread), out)
    return bound.nan_to_num(nan=math.inf, posinf=math.inf)


def dot_product_local_bound(
    x: Float[Tensor, "*batch N D"],
    score_map: Float[Tensor, "H D D"],
    value: Float[Tensor, "H D v"],
    out: Float[Tensor, "E D"],
    causal: bool,
) -> Float[Tensor, "*batch"]:
    r"""Bound on the 2-norm of the Jacobian *at* X, without forming it: :func:`combine_heads` of

    .. math:: \min\Big\{ \|P\|_2 \|W^V\|_2 + \Big(\max_j \sum_i P_{ij} w_i^2 \lambda_i\Big)^{1/2},\
              \Big(\max_j \sum_i P_{ij} \big(\|W^V\|_2^2 + w_i^2 \lambda_i\big)\Big)^{1/2} \Big\}
              + \max_i \|A C_i W^V\|_2

    with :math:`C_i = \sum_j P_{ij} (x_j - m_i)(x_j - m_i)^\top` the covariance of what token i attends to,
    :math:`w_i = \|A^\top x_i\|_2` and :math:`\lambda_i = \|W^{V\top} C_i W^V\|_2`.

    It says nothing about inputs near X. Work: H N (N D v + D^2 v) products and H N norms of (D, v) matrices.

    Args:
        x: inputs, each of which is treated separately.
        score_map: the A_h.
        value: the W^V_h.
        out: W^O, E = H v.
        causal: whether token i sees only tokens up to i.

    Returns:
        One bound per input, float64.

    References: ours, docs/mathematics.md, 12. A bound by :math:`\max_i \|A^\top x_i\|_2` alone, as in the code
    published with arXiv 2312.14820, lacks the last term and is false.
    """
    score_map, value = score_map.double(), value.double()
    tokens = x.double().unsqueeze(-3)  # (..., 1, N, D), against the heads
    pulled = tokens @ score_map  # rows x_i A_h = (A_h^T x_i)^T
    weights = masked_softmax(pulled @ tokens.mT, causal)
    # Row i of head h: the tokens about their mean m_i, (..., H, N, N, D), and their values.
    means = weights @ tokens
    apart = tokens.unsqueeze(-3) - means.unsqueeze(-2)
    apart = apart * weights.sqrt().unsqueeze(-1)
    values = apart @ value.unsqueeze(-3)
    spread = pulled.square().sum(-1) * spectral.exact(values).square()  # (..., H, N): w_i^2 lambda_i
    turned = spectral.exact(score_map.unsqueeze(-3) @ (apart.mT @ values)).amax(-1)

    norm = spectral.exact(value)
    of_columns = (weights.mT @ spread.unsqueeze(-1)).squeeze(-1).amax(-1).sqrt()
    together = (weights.mT @ (norm.square()[:, None] + spread).unsqueeze(-1)).squeeze(-1).amax(-1).sqrt()
    heads = torch.minimum(spectral.exact(weights) * norm + of_columns, together) + turned
    return combine_heads(heads, out.double()).nan_to_num(nan=math.inf, posinf=math.inf)


def _largest_column_sum(spread: Tensor, length: int, causal: bool) -> Tensor:
    """Bound the column sums of P: scores differ by 2 alpha at most, so no weight of k exceeds 1/(1+(k-1)e^-2alpha)."""
    seen = torch.arange(length, dtype=torch.float64, device=spread.device) if causal else length - 1
    rows = 1 / (1 + seen * (-2 * spread).exp()[:, None])
    return rows.sum(-1) if causal else length * rows[:, 0]


def _inf_bound_on_ball(score_map: Tensor, value: Tensor, out: Tensor, square: Tensor) -> Tensor:
    columns = value @ out.unflatten(0, (value.shape[0], -1))  # (H, D, D): column e is c_he
    gain = _norm_2_to_1(score_map) + _norm_2_to_1(score_map.mT)
    spread = square * gain[:, None] * torch.linalg.vector_norm(columns, dim=-2)
    return (columns.abs().sum(-2) + spread).sum(0).amax()


def _norm_2_to_1(matrix: Tensor) -> Tensor:
    """Bound the largest 1-norm of ``A x`` over unit x."""
    rows = torch.linalg.vector_norm(matrix, dim=-1).sum(-1)
    return torch.minimum(rows, math.sqrt(matrix.shape[-2]) * spectral.exact(matrix))
