"""Inputs at which layers are known to be steep: attention for any weights, layer normalisation."""

import math
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipformer.functional.heads import split_outputs
from lipformer.theorems import phi_inverse


class _TiedL2(Protocol):
    query: nn.Linear
    heads: int
    s: float


class _DotProduct(Protocol):
    query: nn.Linear
    key: nn.Linear
    heads: int


@torch.no_grad()
def two_clusters(layer: _TiedL2, length: int, *, head: int = 0) -> Float[Tensor, "1 N D"]:
    r"""A token at the origin between two far clusters of all the others: steep for a head of L2 attention.

    .. math:: x_N = 0, \quad x_i = \pm a\, e, \quad a^2 = \frac{s\,(c + 1)}{\|W_h\|_2^2}, \qquad c = \varphi^{-1}(N-1)

    with e the direction that W_h stretches most, so that t_{Ni} = c + 1: the last row then has the largest mean
    distance that a row can have (:func:`~lipformer.theorems.phi_inverse`). With width and weights 1 and N odd
    its row sum is 4c - 1 + 2/(1 + c), of at most 4c + 1. The token is the last, to see all under a causal mask too.

    Args:
        layer: tied L2 attention: it has ``query``, ``heads`` and the divisor ``s``.
        length: N.
        head: h.

    References: Kim et al. 2021, Theorem 3.2 (where its proof is tight), arXiv 2006.04710; docs/mathematics.md, 18.
    """
    weight = split_outputs(layer.query.weight, layer.heads)[head]
    left, singular, _ = torch.linalg.svd(weight, full_matrices=False)
    a = math.sqrt(layer.s * (phi_inverse(length) + 1)) / singular[0]
    signs = torch.ones(length, dtype=weight.dtype, device=weight.device)
    signs[1::2] = -1
    signs[-1] = 0
    return (a * signs[:, None] * left[:, 0])[None]


@torch.no_grad()
def dominant_token(layer: _DotProduct, length: int, radius: float, *, head: int = 0) -> Float[Tensor, "1 N D"]:
    r"""One token that all others attend to: steep for a head of dot-product attention, with a constant ~ sqrt(N).

    .. math:: X = R\,(e, \tfrac e2, \dots, \tfrac e2) \ \text{ if } \lambda_{max} > -8 \lambda_{min},
              \quad\text{else}\quad X = R\,(-e, e, \dots, e)

    with the extreme eigenvalues of the symmetric part of W^Q_h W^{K T}_h / sqrt(d), and e of the one that is taken.
    The first token's score then leads by lambda_max R^2 / 4 or by -2 lambda_min R^2, whose ratio is the 8: almost all
    of the N rows read it, and moving it moves them all, as long as log N is below that lead.

    Args:
        layer: dot-product attention: it has ``query``, ``key`` and ``heads``.
        length: N.
        radius: R, the Euclidean norm of the first token, no other's being larger.
        head: h.

    References: code of Castin, Ablin, Peyré 2024, arXiv 2312.14820; there e is an eigenvector of the matrix itself,
    which need not be real. Scores along one line depend on the symmetric part alone, and this e has the largest.
    """
    query, key = (split_outputs(linear.weight, layer.heads)[head] for linear in (layer.query, layer.key))
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    values, vectors = torch.linalg.eigh((scores + scores.mT) / 2)
    attracts = bool(values[-1] > -8 * values[0])
    tokens = radius * vectors[:, -1 if attracts else 0].repeat(length, 1)
    tokens[1:] *= 0.5 if attracts else -1
    return tokens[None]


def steepest_token(width: int, eps: float) -> Float[Tensor, " D"]:
    r"""A token at which layer normalisation without a learned scale attains its constant in the inf-norm.

    .. math:: x = \sqrt{\tfrac{D\epsilon r}{1 - r}}\; w, \qquad
              w \propto \tfrac{p}{\|p\|} + \tfrac{q}{\|q\|}, \quad p = C e_1, \quad q = -C 1_m

    with C the projection that subtracts the mean, 1_m the first m entries, and m and r those at which the maximum of
    the theorem stands (:func:`~lipformer.theorems.layer_norm_bound`): the first row sums to the constant. Up to
    D = 57, r = 0, and x is the origin; beyond, one entry lies between the others, which take two values.

    Args:
        width: D.
        eps: added to the variance.

    Returns:
        (D,), in float64 and of mean zero.

    References: docs/mathematics.md, Theorem 10.1, from whose proof this is taken.
    """
    best, token = -math.inf, torch.zeros(width, dtype=torch.float64)
    for m in range(1, width):
        left = width - m
        a, b = 2 * left / width, (math.sqrt((width - 1) * m * left) - left) / width
        r = max(0.0, (2 * b - a) / (3 * b)) if b > 0 else 0.0
        height = math.sqrt(1 - r) * (a + b * r)
        if height > best:
            best = height
            p = torch.eye(width, dtype=torch.float64)[0] - 1 / width
            q = m / width - (torch.arange(width) < m).double()
            w = p / p.norm() + q / q.norm()
            token = math.sqrt(width * eps * r / (1 - r)) * w / w.norm().clamp_min(torch.finfo(w.dtype).tiny)
    return token
