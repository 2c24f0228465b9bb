r"""Operator norms of matrices: the 2-norm (exact, and bounds from above and below), the inf-norm, names of norms.

A certificate (``lipschitz_bound``) uses only :func:`exact` (float64) or :func:`inf_norm`. A divisor inside a forward
pass uses only :func:`upper` or :func:`inf_norm`. Power iteration, :func:`lower`, approaches the 2-norm from *below*,
so it serves only for measurements.
"""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lipformer.functional.precision import at_least_float32

Norm = Literal[2, "mixed"] | float
"""2: Euclidean norm of all N D entries. ``math.inf``: largest absolute entry. "mixed": largest token 2-norm."""


def parse_norm(p: Norm | str) -> Norm:
    """Return 2, ``math.inf`` or "mixed", given the norm or its spelling in a config file; else raise ``ValueError``."""
    if p == "mixed":
        return "mixed"
    if str(p) in ("2", "2.0"):
        return 2
    if str(p).lstrip(".") == "inf":
        return math.inf
    raise ValueError(f"p must be 2, inf or 'mixed', not {p!r}")


def inf_norm(matrix: Float[Tensor, "*batch m n"]) -> Float[Tensor, "*batch"]:
    r"""Operator norm of ``x -> A x`` for the max-norm: the largest absolute *row* sum.

    .. math:: \|A\|_\infty = \max_i \textstyle\sum_j |A_{ij}|

    For the map ``x -> x A`` of row vectors, pass the transpose. The result is differentiable almost everywhere.
    """
    return matrix.abs().sum(-1).amax(-1)


def exact(matrix: Float[Tensor, "*batch m n"]) -> Float[Tensor, "*batch"]:
    """2-norm (largest singular value) by an SVD in float64, accurate to a few float64 roundings.

    If an entry is not finite, the result is nan: no bound can be certified.
    """
    norm = torch.linalg.svdvals(matrix.double().nan_to_num(0, 0, 0))[..., 0]
    return norm.where(matrix.isfinite().all(-1).all(-1), math.nan)


def lower(
    matrix: Float[Tensor, "*batch m n"], iterations: int = 20, generator: torch.Generator | None = None
) -> Float[Tensor, "*batch"]:
    r"""Estimate the 2-norm from *below* by power iteration: cheap, for measurements, never for a certificate.

    .. math:: \|A\|_2 \ge \frac{\|A v\|_2}{\|v\|_2}, \qquad v = (A^\top A)^k v_0

    The result is the gain of one vector, so it exceeds the norm by no more than rounding, even before convergence.
    It is differentiable in the matrix, with v held constant; once v has converged, this is the gradient of the norm.

    Args:
        matrix: any shape (*batch, m, n). Half precision is cast up to float32.
        iterations: k; each costs two products of the matrix with a vector.
        generator: draws the Gaussian v_0 and is on the matrix's device; None uses torch's global generator.

    Returns:
        One estimate per matrix, in the matrix's precision, at least float32.
    """
    matrix = at_least_float32(matrix)
    with torch.autocast(matrix.device.type, enabled=False):
        size = _nonzero(matrix.detach().abs().amax((-2, -1)))[..., None, None]
        unit = matrix / size  # so that squares of entries neither overflow nor vanish
        v = torch.randn(
            *matrix.shape[:-2], matrix.shape[-1], 1, generator=generator, dtype=matrix.dtype, device=matrix.device
        )
        fixed = unit.detach()
        for _ in range(iterations):
            v = fixed.mT @ (fixed @ v)
            v = v / _nonzero(torch.linalg.vector_norm(v, dim=(-2, -1), keepdim=True))
        gain = torch.linalg.vector_norm(unit @ v, dim=(-2, -1)) / _nonzero(torch.linalg.vector_norm(v, dim=(-2, -1)))
        return size[..., 0, 0] * gain


def upper(matrix: Float[Tensor, "*batch m n"], iterations: int = 6) -> Float[Tensor, "*batch"]:
    r"""Differentiable upper bound on the 2-norm by Gram iteration.

    .. math:: \|A\|_2 \le \|A_k\|_F^{1/2^k}, \qquad A_0 = A,\quad A_{j+1} = A_j^\top A_j .

    The bound exceeds the norm by a factor of at most :math:`r^{1/2^{k+1}}` for rank r (1.05 at r = 512 and
    k = 6, reached only if all singular values are equal).

    Each A_j is divided by its Frobenius norm so that nothing overflows or vanishes. This scaling is undone in
    the result, so the divisors may be constants to autograd. Rounding errors are included in the bound: with
    ``||A_j||_F = 1`` a product with m terms per entry errs by at most ``m eps`` in norm, which is added at each
    step. A zero matrix gives 0 and a zero gradient.

    Args:
        matrix: any shape (*batch, m, n), float32 or float64. Half precision is cast up to float32.
        iterations: k, the number of products; the first costs m n min(m, n), each other one min(m, n)^3.

    Returns:
        One bound per matrix, in the matrix's precision, at least float32.

    References:
        Delattre, Barthélemy, Araujo, Allauzen, ICML 2023, "Efficient bound of Lipschitz constant for
        convolutional layers by Gram iteration", arXiv 2305.16173. The rounding term is ours.
    """
    matrix = at_least_float32(matrix)
    if matrix.shape[-2] < matrix.shape[-1]:
        matrix = matrix.mT
    with torch.autocast(matrix.device.type, enabled=False):
        # Compute the Frobenius norm in two steps, since squaring the entries may overflow.
        largest = _nonzero(matrix.detach().abs().amax((-2, -1)))
        size = largest * torch.linalg.matrix_norm(matrix.detach() / largest[..., None, None])
        current = matrix / _nonzero(size)[..., None, None]
        factors, errors = [], []
        for _ in range(iterations):
            errors.append(product_error(current.shape[-2], current.dtype))
            product = current.mT @ current
            factor = torch.linalg.matrix_norm(product.detach())
            current = product / _nonzero(factor)[..., None, None]
            factors.append(factor)
        bound = torch.linalg.matrix_norm(current)
        # ||A_j||^2 = ||A_j' A_j|| <= ||computed product|| + rounding, from the last product back to the first.
        for factor, error in zip(reversed(factors), reversed(errors), strict=True):
            bound = (factor * bound + error).sqrt()
        return size * bound * (1 + 8 * torch.finfo(matrix.dtype).eps)


def normalise(matrix: Float[Tensor, "*batch m n"], iterations: int = 8) -> Float[Tensor, "*batch m n"]:
    r"""Divide by :func:`upper`, so that the 2-norm is at most 1 and close to 1.

    A matrix whose norm is zero (or at most the root of the smallest normal number, 1e-19 in float32) is returned
    unchanged: its norm is below 1 already, and it still gets a gradient. Differentiable; the result is in float32 or
    float64.
    """
    matrix = at_least_float32(matrix)
    bound = upper(matrix, iterations)
    vanishing = bound <= math.sqrt(torch.finfo(bound.dtype).tiny)
    return matrix / torch.where(vanishing, torch.ones_like(bound), bound)[..., None, None]


def _nonzero(tensor: Tensor) -> Tensor:
    """Replace exact zeros by one, so that the result can be divided by."""
    return torch.where(tensor == 0, torch.ones_like(tensor), tensor)


@torch.compiler.assume_constant_result  # the result is a float, and a change of precision recompiles
def product_error(terms: int, dtype: torch.dtype) -> float:
    """Bound on the rounding error of a product of two matrices of unit Frobenius norm, with ``terms`` terms per entry.

    torch may be set to round the factors of float32 products to TF32 or bfloat16. If this was set through
    ``torch.backends.*.fp32_precision``, torch does not report one common setting, and the coarsest is assumed.
    """
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:
        precision = "medium"
    factors = {"highest": 0.0, "high": 2.0**-9, "medium": 2.0**-7}[precision]
    return terms * torch.finfo(dtype).eps + (factors if dtype == torch.float32 else 0.0)
