r"""Lipschitz constants of tied L2 self-attention, each theorem a function.

Legend, in the layout of ``x W`` (so *not* that of ``nn.Linear``, its transpose): N tokens, D width, H
heads, d columns per head; W_h = W^Q_h (D x d), W^V_h (D x d_v), W^O (D x D); value map M_h = W_h^T W^V_h /
s (d x d_v); s the divisor of the squared distances, sqrt(d) unless said otherwise; c = :func:`phi_inverse`.

The layer is F(X) = [P^1 X W_1 M_1, ..., P^H X W_H M_H] W^O with P^h = softmax(-|x_i W_h - x_j W_h|^2 / s),
the same as [P^h X A_h W^V_h]_h W^O of Kim et al. with A_h = W_h W_h^T / s. All bounds hold under any mask that
leaves each token itself to attend to, the causal one among them. Proofs: docs/mathematics.md, 1 to 3 and 8.

Functions that need a 2-norm take it as ``norm``: :func:`lipformer.functional.spectral.exact` (default) for a
certificate, ``spectral.upper`` for a divisor that is differentiated through.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from lipformer.functional import spectral
from lipformer.functional.spectral import Norm, parse_norm
from lipformer.theorems.l2_head import head_constant, row_distance

MatrixNorm = Callable[[Tensor], Tensor]


def tied_l2_bound(
    query: Float[Tensor, "H D d"],
    value_map: Float[Tensor, "H d v"],
    out: Float[Tensor, "E D"],
    length: int,
    p: Norm,
    slope: Float[Tensor, " H"] | None = None,
) -> Float[Tensor, ""]:
    """The sharpest constant here in the norm ``p``, with exact norms; other arguments as in the next three."""
    p = parse_norm(p)
    if p == math.inf:
        return tied_l2_bound_inf(query, value_map, out, length, slope)
    bound = tied_l2_bound_2 if p == 2 else tied_l2_bound_mixed
    return bound(query, value_map, out, length, slope=slope)


def tied_l2_bound_mixed(
    query: Float[Tensor, "H D d"],
    value_map: Float[Tensor, "H d v"],
    out: Float[Tensor, "E D"],
    length: int,
    norm: MatrixNorm = spectral.exact,
    slope: Float[Tensor, " H"] | None = None,
) -> Float[Tensor, ""]:
    r"""Constant in the mixed norm :math:`\max_i \|x_i\|_2`: free of N except through c.

    .. math:: \mathrm{Lip}_{mix}(F) \le (4c + 1)\, \|W^O\|_2 \Big(\sum_h \|W_h\|_2^2\, \|M_h\|_2^2\Big)^{1/2}

    A head q -> P q has the constant 4c + 1 whatever W_h, s and the scale of q. M_h is bounded as a whole,
    not as a product of norms.

    Args:
        query: the W_h.
        value_map: the M_h.
        out: W^O, E = H v.
        length: N, or the longest attended span.
        norm: 2-norm of a batch of matrices, exact or from above.
        slope: of each head's penalty on distance, with causal attention; c is then one of each head, see
            :func:`local_mass`, and stands under the root.

    References: none; ours, docs/mathematics.md, 3 and 8.
    """
    heads = norm(query) * norm(value_map)
    return norm(out) * _root_sum_squares(heads * head_constant(length, slope).to(heads.dtype))


def tied_l2_bound_2(
    query: Float[Tensor, "H D d"],
    value_map: Float[Tensor, "H d v"],
    out: Float[Tensor, "E D"],
    length: int,
    norm: MatrixNorm = spectral.exact,
    slope: Float[Tensor, " H"] | None = None,
) -> Float[Tensor, ""]:
    r"""Constant in the 2-norm, :math:`\mathrm{Lip}_2(F) \le \sqrt N \times` :func:`tied_l2_bound_mixed`.

    Never above :func:`kim_bound_2`, which bounds M_h by a product of norms. Arguments as there.

    References: ours, from the inequalities between the two norms; docs/mathematics.md, 3.
    """
    return math.sqrt(length) * tied_l2_bound_mixed(query, value_map, out, length, norm, slope)


def tied_l2_bound_inf(
    query: Float[Tensor, "H D d"],
    value_map: Float[Tensor, "H d v"],
    out: Float[Tensor, "E D"],
    length: int,
    slope: Float[Tensor, " H"] | None = None,
) -> Float[Tensor, ""]:
    r"""Constant in the max-norm over all entries, with the value map as a whole.

    .. math:: \mathrm{Lip}_\infty(F) \le (4 c \sqrt d + 1)\, \|W^{O\top}\|_\infty
              \max_h \|W_h^\top\|_\infty \|M_h^\top\|_\infty

    Never above :func:`kim_bound_inf`, its case of M_h bounded by a product. Arguments as in
    :func:`tied_l2_bound_mixed`; no norm to choose, row sums are exact.

    References: ours, by the proof of Kim et al. 2021, Theorem 3.2; docs/mathematics.md, 2.
    """
    d = query.shape[-1]
    heads = spectral.inf_norm(query.mT) * spectral.inf_norm(value_map.mT)
    heads = heads * (4 * row_distance(length, slope) * math.sqrt(d) + 1).to(heads.dtype)
    return spectral.inf_norm(out.mT) * heads.amax()


def tied_l2_bound_blocks(
    query: Float[Tensor, "H D d"],
    value_map: Float[Tensor, "H d d"],
    written: Float[Tensor, "H D d"],
    length: int,
    norm: MatrixNorm = spectral.exact,
    slope: Float[Tensor, " H"] | None = None,
) -> Float[Tensor, ""]:
    r"""Constant in the head-block norm :math:`\max_{i,h} \|x_i U_h\|_2` of a layer that writes to :math:`W_h^\top`.

    .. math:: F(X) = \sum_h P^h X U_h V_h W_h^\top, \qquad
              \mathrm{Lip}_{block}(F) \le (4c + 1) \max_g \sum_h \|V_h\, W_h^\top U_g\|_2

    If [U_1, ..., U_H] is orthogonal and the W_h are the U_h in another order, that is :math:`(4c+1) \max_h \|V_h\|_2`:
    no head adds to another. For matrices that are orthogonal only up to rounding, the general form holds exactly.

    Args:
        query: the U_h; together they must have full rank, or it is not a norm.
        value_map: the V_h.
        written: the W_h.
        length: N, or the longest attended span.
        norm: 2-norm of a batch of matrices, exact or from above.
        slope: as in :func:`tied_l2_bound_mixed`.

    References: none; ours, docs/mathematics.md, 8.
    """
    constant = head_constant(length, slope).to(value_map.dtype)
    value_map = value_map * (constant if slope is None else constant[:, None, None])
    return block_norm(value_map[:, None] @ written.mT[:, None] @ query, norm)


def block_norm(blocks: Float[Tensor, "H G d d"], norm: MatrixNorm = spectral.exact) -> Float[Tensor, ""]:
    r"""Bound on :math:`z \mapsto \big(\sum_h z_h B_{hg}\big)_g` for the norm :math:`\max_h \|z_h\|_2`.

    .. math:: \max_g \sum_h \|B_{hg}\|_2
    """
    return norm(blocks).sum(0).amax()


def kim_bound_inf(
    query: Float[Tensor, "H D d"],
    value: Float[Tensor, "H D v"],
    out: Float[Tensor, "E D"],
    length: int,
    s: float | None = None,
    slope: Float[Tensor, " H"] | None = None,
) -> Float[Tensor, ""]:
    r"""Theorem 3.2, p = inf.

    .. math:: \mathrm{Lip}_\infty(F) \le \frac{4 c \sqrt d + 1}{s}\, \|W^{O\top}\|_\infty
              \max_h \|W_h\|_\infty \|W_h^\top\|_\infty \|W_h^{V\top}\|_\infty

    With s = sqrt(d) the fraction is the familiar 4c + 1/sqrt(D/H). It is written for any s because a layer
    with more columns per head (d = 2 D/H) that keeps s = sqrt(D/H) has *not* the constant 4c + 1/s: W =
    I_2, s = 1, N = 33 reaches 8.67 > 8.40. The transposes matter: with the norms of W^V and W^O
    untransposed, as often coded, the value is exceeded (by up to 1.59). One maximum over the product of the
    heads' norms instead of a product of maxima is tighter and follows from the same proof.

    Args:
        query: the W_h.
        value: the W^V_h.
        out: W^O, E = H v.
        length: N, or the longest attended span.
        s: divisor of the squared distances; None for sqrt(d).
        slope: as in :func:`tied_l2_bound_mixed`.

    References: Kim et al. 2021, Theorem 3.2, arXiv 2006.04710; re-derived in docs/mathematics.md, 2.
    """
    d = query.shape[-1]
    s = math.sqrt(d) if s is None else s
    # In this order: the product of the two norms of W_h alone may vanish or overflow in float32.
    heads = spectral.inf_norm(query) * (spectral.inf_norm(query.mT) * spectral.inf_norm(value.mT))
    heads = heads * ((4 * row_distance(length, slope) * math.sqrt(d) + 1) / s).to(heads.dtype)
    return spectral.inf_norm(out.mT) * heads.amax()


def kim_bound_2(
    query: Float[Tensor, "H D d"],
    value: Float[Tensor, "H D v"],
    out: Float[Tensor, "E D"],
    length: int,
    s: float | None = None,
    norm: MatrixNorm = spectral.exact,
    slope: Float[Tensor, " H"] | None = None,
) -> Float[Tensor, ""]:
    r"""Theorem 3.2, p = 2, in the form that can be proved: with *fourth* powers.

    .. math:: \mathrm{Lip}_2(F) \le \frac{\sqrt N (4c + 1)}{s}\, \|W^O\|_2
              \Big(\sum_h \|W_h\|_2^4\, \|W_h^V\|_2^2\Big)^{1/2}

    The form in common use has squares of ||W_h|| under the root. It is false: scaling W_h by a scales the
    constant by a^2, so no bound linear in a can hold, and N = 2, D = 1, W = 2 attains 6.41 > 5.98.
    (Fourth powers give 11.96 there.) Arguments as in :func:`kim_bound_inf` and :func:`tied_l2_bound_mixed`.

    References: after Kim et al. 2021, Theorem 3.2, arXiv 2006.04710; proved in docs/mathematics.md, 3.
    """
    s = math.sqrt(query.shape[-1]) if s is None else s
    size = norm(query)
    heads = size * (size * norm(value))  # in this order: the square alone may vanish or overflow in float32
    return math.sqrt(length) / s * norm(out) * _root_sum_squares(heads * head_constant(length, slope).to(heads.dtype))


def _root_sum_squares(heads: Tensor) -> Tensor:
    """Combine the heads in quadrature, without overflow and with a zero gradient at zero."""
    largest = heads.detach().amax()
    largest = torch.where((largest == 0) | largest.isinf(), torch.ones_like(largest), largest)
    return largest * torch.linalg.vector_norm(heads / largest)
