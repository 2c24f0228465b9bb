"""Inputs at which attention is known to be steep, for any weights."""

import math
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipformer.bounds.theorems import phi_inverse
from lipformer.functional.heads import split_outputs


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
    distance that a row can have (:func:`~lipformer.bounds.theorems.phi_inverse`). With width and weights 1 and N odd
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
