r"""The three norms of sequences, and the vectors in which each attains its dual.

Legend: x, y, z batches of sequences (B, ..., D), with one norm per batch element; a token is one vector of D numbers.
:math:`\|x\|_{mix} = \max_i \|x_i\|_2`. The dual of the 2-norm is the 2-norm, that of the inf-norm is the sum of the
absolute entries, and that of the "mixed" norm is the sum of the tokens' Euclidean norms.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lipformer.functional.spectral import Norm


def sequence_norm(x: Float[Tensor, "B *shape"], p: Norm) -> Float[Tensor, " B"]:
    """Norm of each batch element; p is 2, ``math.inf`` or "mixed"."""
    if p == 2:
        return torch.linalg.vector_norm(x.flatten(1), dim=1)
    tokens = torch.linalg.vector_norm(x, dim=-1) if p == "mixed" else x.abs()
    return tokens.flatten(1).amax(1)


def steepest_point(z: Float[Tensor, "B *shape"], p: Norm) -> Float[Tensor, "B *shape"]:
    r"""The x of the unit ball of p with the largest :math:`\langle z, x\rangle`, the dual norm of z.

    It is found for the whole sequence for 2, for each entry for inf, and for each token for "mixed". Zeros stay zeros.
    """
    if p == 2:
        return _unit(z, tuple(range(1, z.dim())))
    return _unit(z, -1) if p == "mixed" else z.sign()


def norming_functional(y: Float[Tensor, "B *shape"], p: Norm) -> Float[Tensor, "B *shape"]:
    r"""A u with dual norm one (zero if y = 0) and :math:`\langle u, y\rangle = \|y\|_p`.

    For 2 it is y/|y|. For inf and "mixed" it is the same on the largest entry or token (the first, if several are
    equal) and zero elsewhere.
    """
    if p == 2:
        return _unit(y, tuple(range(1, y.dim())))
    sizes = (torch.linalg.vector_norm(y, dim=-1) if p == "mixed" else y.abs()).flatten(1)
    one_hot = torch.zeros_like(sizes).scatter_(1, sizes.argmax(1, keepdim=True), 1.0)
    shape = y.shape[:-1] if p == "mixed" else y.shape
    chosen = one_hot.reshape(shape)
    return steepest_point(y * (chosen[..., None] if p == "mixed" else chosen), p)


def _unit(z: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Divide by the Euclidean norm over ``dim``; by the largest entry first, since squares may overflow or vanish."""
    tiny = torch.finfo(z.dtype).tiny
    z = z / z.abs().amax(dim, keepdim=True).clamp_min(tiny)
    return z / torch.linalg.vector_norm(z, dim=dim, keepdim=True).clamp_min(math.sqrt(tiny))
