r"""The Jacobian of softmax, diag(p) - p p^T, and what its norm says of an attention layer at one input.

Legend: p a row of n attention weights, p_(k) its k-th largest, P all rows of a head; the layer as in
:mod:`lipformer.theorems.dot_product`. Proofs: docs/mathematics.md, 13.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lipformer.functional import spectral
from lipformer.functional.attention import masked_softmax
from lipformer.functional.precision import at_least_float32
from lipformer.theorems.heads import combine_heads

SOFTMAX_BOUND = 0.5
"""Lipschitz constant of softmax in the 1-, 2- and inf-norm; its Jacobian comes near it around (1/2, 1/2, 0, ...)."""

_ITERATIONS = 5


def softmax_jacobian_g(weights: Float[Tensor, "*batch n"], k: int = 1) -> Float[Tensor, "*batch"]:
    r"""Bound on the k-th largest eigenvalue of the Jacobian, in closed form; k = 1 bounds its 2-norm.

    .. math:: \lambda_k\big(\mathrm{diag}(p) - pp^\top\big) \le g_k(p) = p_{(k)} \big(1 - p_{(k)} + p_{(k+1)}\big),
              \qquad p_{(n+1)} = 0

    g_1 is at most 1/2, is the norm itself if all p but the largest are equal, and exceeds it by 18 % at most in every
    case tried.

    Args:
        weights: rows p, each non-negative and of sum 1.
        k: 1 to n.

    Raises:
        ValueError: k outside 1 to n.

    References: Yudin, Gaponov, Kudriashov, Rakhuba 2025, arXiv 2507.07814, for the form; the proof is ours.
    """
    columns = weights.shape[-1]
    if not 1 <= k <= columns:
        raise ValueError(f"k must be between 1 and the {columns} entries of a row, not {k}")
    largest = weights.topk(min(k + 1, columns)).values
    following = largest[..., k] if k < columns else torch.zeros_like(largest[..., 0])
    return largest[..., k - 1] * (1 - largest[..., k - 1] + following)


def softmax_jacobian_norm(weights: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    r"""2-norm of the Jacobian of softmax, by its secular equation, in O(n) for each row.

    .. math:: \lambda = \Big\|\mathrm{diag}(p) - \frac{pp^\top}{\sum_i p_i}\Big\|_2, \qquad
              \sum_i \frac{p_i}{p_i - \lambda} = 0, \qquad p_{(2)} \le \lambda \le p_{(1)}

    The sum of a row is 1 but for rounding; written like this, lambda is as accurate as p, also next to one-hot rows,
    where 1 - p_(1) would be all rounding. The gradient is :math:`(v_i - \bar v)^2` with the unit eigenvector
    :math:`v_i \propto p_i / (p_i - \lambda)` and its mean :math:`\bar v` under p; through a softmax this is the same
    as :math:`v_i^2 - 2 v_i \bar v`. Where several p tie for the largest, it is 1/m for each of the m (for m > 2
    one of many subgradients), and where only one p is not zero it is 0.

    Args:
        weights: rows p, non-negative. Half precision is cast up to float32.

    Returns:
        One norm per row, in the rows' precision. Differentiable once: a second derivative raises.

    References: ours, docs/mathematics.md, 13; the iteration is of the kind of Bunch, Nielsen, Sorensen 1978.
    """
    return _JacobianNorm.apply(at_least_float32(weights))


def softmax_block_bound(
    x: Float[Tensor, "*batch N D"],
    score_map: Float[Tensor, "H D D"],
    value: Float[Tensor, "H D v"],
    out: Float[Tensor, "E D"],
    causal: bool,
) -> Float[Tensor, "*batch"]:
    r"""Bound on the 2-norm of the Jacobian of dot-product attention *at* X: :func:`combine_heads` of

    .. math:: \|W^V_h\|_2 \Big( \|P\|_2 + 2\, \|X\|_2^2\, \|A_h\|_2 \max_i g_1(P_i) \Big)

    Never below :func:`softmax_block_bound_centered`. Arguments and result as in
    :func:`~lipformer.theorems.dot_product.dot_product_local_bound`.

    References: Yudin et al. 2025, Theorem 3, arXiv 2507.07814, for one head; the proof and more heads are ours.
    """
    tokens, weights, score_map, value = _attend(x, score_map, value, causal)
    largest = softmax_jacobian_g(weights).amax(-1)
    moved = 2 * spectral.exact(tokens).square() * spectral.exact(score_map) * largest
    return _finish(spectral.exact(value) * (spectral.exact(weights) + moved), out)


def softmax_block_bound_centered(
    x: Float[Tensor, "*batch N D"],
    score_map: Float[Tensor, "H D D"],
    value: Float[Tensor, "H D v"],
    out: Float[Tensor, "E D"],
    causal: bool,
) -> Float[Tensor, "*batch"]:
    r"""Sharpen :func:`softmax_block_bound`: tokens about their mean, and the Jacobian's norm itself.

    .. math:: \|W^V_h\|_2 \|P\|_2 + \max_i \lambda(P_i)\, \|X_c W^V_h\|_2
              \big( \|A_h X_c^\top\|_2 + \|X A_h\|_2 \big), \qquad X_c = X - \tfrac1N 11^\top X

    then :func:`combine_heads`. The mean may be taken off because :math:`(\mathrm{diag}(p) - pp^\top) 1 = 0`.
    Arguments and result as there.

    References: ours, docs/mathematics.md, 13.
    """
    tokens, weights, score_map, value = _attend(x, score_map, value, causal)
    centered = tokens - tokens.mean(-2, keepdim=True)
    largest = softmax_jacobian_norm(weights).amax(-1)
    scores = spectral.exact(centered @ score_map.mT) + spectral.exact(tokens @ score_map)
    moved = largest * spectral.exact(centered @ value) * scores
    return _finish(spectral.exact(value) * spectral.exact(weights) + moved, out)


def _attend(x: Tensor, score_map: Tensor, value: Tensor, causal: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens (..., 1, N, D) against the heads, attention (..., H, N, N), and the layer's weights, in float64."""
    tokens, score_map = x.double().unsqueeze(-3), score_map.double()
    return tokens, masked_softmax(tokens @ score_map @ tokens.mT, causal), score_map, value.double()


def _finish(heads: Tensor, out: Tensor) -> Tensor:
    return combine_heads(heads, out.double()).nan_to_num(nan=math.inf, posinf=math.inf)


class _JacobianNorm(torch.autograd.Function):
    """With x = lambda - p_(2) as the unknown and gap_i = p_(2) - p_i, nothing cancels anywhere.

    The sum over all but the largest entry is concave in t = 1/x, so the tangent s + r t there leads to a quadratic
    equation whose root is never below lambda, and the iterates descend to it quadratically.
    """

    @staticmethod
    def forward(ctx, p: Tensor) -> Tensor:
        first, index = p.max(-1, keepdim=True)
        others = p.scatter(-1, index, 0.0)
        second = others.amax(-1, keepdim=True)
        gaps, gap, rest = second - others, first - second, others.sum(-1, keepdim=True)
        x = gap * (rest / (first + rest))  # of g_1: exact if all others are equal
        for _ in range(_ITERATIONS):
            share = _divide(x, x + gaps)
            r = (others * share.square()).sum(-1, keepdim=True)
            s = (_divide(others, x + gaps) * (1 - share)).sum(-1, keepdim=True)
            x = _positive_root(s, first + r - s * gap, r * gap)
        ctx.save_for_backward(p, index, others, second, gap, x)
        return (second + x).squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> Tensor:
        p, index, others, second, gap, x = ctx.saved_tensors
        top = p.gather(-1, index)
        # v_i = p_i / (p_i - lambda), times x; the largest entry has lambda on its other side.
        v = (-_divide(others * x, x + second - others)).scatter(-1, index, _divide(top * x, gap - x))
        v = v / _nonzero(torch.linalg.vector_norm(v, dim=-1, keepdim=True))
        mean = (p * v).sum(-1, keepdim=True) / _nonzero(p.sum(-1, keepdim=True))
        tied = (p == top) & (top > 0)
        result = torch.where(gap > 0, (v - mean).square(), tied / _nonzero(tied.sum(-1, keepdim=True)).to(p.dtype))
        result = torch.where(second > 0, result, torch.zeros_like(result))
        return gradient.unsqueeze(-1) * result


def _positive_root(s: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Root x >= 0 of s x^2 + b x - c, for s, c >= 0; 0 if all three are."""
    size = (b.square() + 4 * s * c).sqrt()
    return torch.where(b > 0, _divide(2 * c, b + size), _divide(size - b, 2 * s))


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """Quotient with 0 for x / 0: it stands for terms that vanish."""
    return a / _nonzero(b) * (b != 0)


def _nonzero(tensor: Tensor) -> Tensor:
    return torch.where(tensor == 0, torch.ones_like(tensor), tensor)
