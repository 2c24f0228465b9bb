r"""The volume change of a residual, :math:`\log|\det(I + J_f(x))|`, exactly or estimated.

Legend: B batch, N tokens, D width, J the Jacobian of f at x (N D x N D for each element of the batch),
c < 1 the contraction constant of f in some norm, S samples.
"""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lipformer.functional.precision import HALF
from lipformer.modules.contexts import explicit

METHODS = ("exact", "power_series", "hutchinson", "russian_roulette")


def log_det(
    f: Callable[[Tensor], Tensor],
    x: Float[Tensor, "B N D"],
    *,
    method: Literal["exact", "power_series", "hutchinson", "russian_roulette"] = "exact",
    causal: bool = False,
    terms: int = 10,
    samples: int = 1,
    continuation: float = 0.5,
    generator: torch.Generator | None = None,
) -> Float[Tensor, " B"]:
    r"""Log-determinant of x + f(x) for each element of the batch, in nats, summed over tokens and features.

    .. math:: \log|\det(I + J)| = \sum_{k \ge 1} \frac{(-1)^{k+1}}{k} \mathrm{tr}(J^k)

    The series converges if f contracts in any norm. Cut off after n terms it errs by at most
    :math:`N D\, c^{n+1} / ((n+1)(1-c))`.

    ========================  ======================================================  ====================
    ``method``                value                                                   products with J
    ========================  ======================================================  ====================
    ``exact``                 LU of I + J; any f, contractive or not                  N D
    ``power_series``          the first ``terms``, traces exact                       N D
    ``hutchinson``            the same with :math:`v^\top J^k v`, biased by the cut   terms S
    ``russian_roulette``      unbiased: the cut is drawn                              (terms + about 1) S
    ========================  ======================================================  ====================

    v has entries +-1. The roulette goes on after ``terms`` with probability q = ``continuation`` at each term, and
    divides term terms + k by q^k. Its variance is finite if the spectral radius of J is below sqrt(q), hence if c is:
    raise q towards 1 for strong branches, at q/(1-q) more products on average.

    Differentiable in x and in the weights of f, also the estimates, and without bias in the unbiased case. Works under
    ``no_grad`` and ``inference_mode``. If f is a module, its layers with two paths take the explicit one; for any other
    callable that is the caller's to arrange (:func:`~lipformer.modules.contexts.explicit`).

    Args:
        f: the branch, treating each element of the batch by itself; dropout must be off.
        x: tokens at which J is taken, in float32 or float64.
        method: see the table.
        causal: states that no token depends on a later one, which only "exact" and "power_series" use:
            J is then block triangular, and N blocks of D x D take the place of N D x N D.
        terms: terms always summed.
        samples: S, draws that are averaged, independent for each element of the batch.
        continuation: q in (0, 1), for "russian_roulette" only.
        generator: of the draws, on the CPU or where x is; None for torch's own.

    Raises:
        ValueError: unknown ``method``; x not (B, N, D) or in half precision; ``terms`` or ``samples`` below 1;
            ``continuation`` outside (0, 1); ``causal`` while a token does depend on a later one.

    References: Behrmann et al. 2019, arXiv 1811.00995 (series with Hutchinson's estimate); Chen et al. 2019, Theorem 1,
    arXiv 1906.02735 (roulette).
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    if x.dim() != 3:
        raise ValueError(f"expected tokens of shape (B, N, D), not {tuple(x.shape)}")
    if not x.is_floating_point() or x.dtype in HALF:
        raise ValueError(f"a log-determinant needs float32 or float64, not {x.dtype}")
    if terms < 1 or samples < 1:
        raise ValueError(f"terms and samples must be at least 1, not {terms} and {samples}")
    if not 0 < continuation < 1:
        raise ValueError(f"continuation must be in (0, 1), not {continuation}")
    if x.numel() == 0:
        return x.flatten(1).sum(1)  # an empty determinant is 1
    with explicit(f):
        _, pullback = torch.func.vjp(f, x)

    def pull(v: Tensor) -> Tensor:  # v^T J
        return pullback(v)[0]

    if method == "exact":
        blocks = _diagonal_blocks(pull, x, causal)
        identity = torch.eye(blocks.shape[-1], dtype=x.dtype, device=x.device)
        return torch.linalg.slogdet(identity + blocks).logabsdet.sum(-1)
    if method == "power_series":
        return _power_series(_diagonal_blocks(pull, x, causal), terms)
    extra = torch.zeros(samples, len(x), device=x.device)
    if method == "russian_roulette":
        extra = _extra_terms(samples, x, continuation, generator)
    return _estimate(pull, x, terms, extra, continuation, generator)


def _diagonal_blocks(pull: Callable[[Tensor], Tensor], x: Tensor, causal: bool) -> Float[Tensor, "B n m m"]:
    """Blocks on the diagonal of J that determine its determinant: n = 1 of all, or if causal n = N of a token each."""
    batch, tokens, width = x.shape
    blocks = []
    for token in range(tokens):  # one token's rows at a time, to save memory
        units = x.new_zeros(width, batch, tokens, width)
        units[:, :, token] = torch.eye(width, dtype=x.dtype, device=x.device).unsqueeze(1)
        rows = torch.func.vmap(pull)(units).transpose(0, 1)  # (B, D, N, D)
        if not causal:
            blocks.append(rows.flatten(-2))
            continue
        if (rows[:, :, token + 1 :].abs() > 0).any():
            raise ValueError(f"causal=True, but token {token} depends on a later one")
        blocks.append(rows[:, :, token])
    return torch.stack(blocks, 1) if causal else torch.cat(blocks, 1).unsqueeze(1)


def _power_series(blocks: Float[Tensor, "B n m m"], terms: int) -> Float[Tensor, " B"]:
    """Sum of the first terms, the traces those of powers of the blocks."""
    power = blocks
    total = _trace(power)
    for k in range(2, terms + 1):
        power = power @ blocks
        total = total + (-1) ** (k + 1) / k * _trace(power)
    return total


def _trace(blocks: Float[Tensor, "B n m m"]) -> Float[Tensor, " B"]:
    return blocks.diagonal(dim1=-2, dim2=-1).sum((-2, -1))


def _extra_terms(samples: int, x: Tensor, continuation: float, generator: torch.Generator | None) -> Tensor:
    """Terms beyond those always summed, (S, B), at least k of them with probability continuation^k."""
    device = x.device if generator is None else generator.device
    uniform = 1 - torch.rand(samples, len(x), dtype=torch.float64, generator=generator, device=device)  # in (0, 1]
    return (uniform.log() / torch.tensor(continuation, dtype=torch.float64).log()).floor().to(x.device)


def _estimate(
    pull: Callable[[Tensor], Tensor],
    x: Tensor,
    terms: int,
    extra: Float[Tensor, "S B"],
    continuation: float,
    generator: torch.Generator | None,
) -> Float[Tensor, " B"]:
    """Mean over samples of the series cut after terms + extra, later terms weighted by 1 / probability."""
    device = x.device if generator is None else generator.device
    signs = torch.randint(0, 2, (len(extra), *x.shape), generator=generator, device=device)
    probes = (2 * signs - 1).to(x)
    products, total = probes, x.new_zeros(extra.shape)
    for k in range(1, terms + int(extra.max()) + 1):
        products = torch.func.vmap(pull)(products)
        beyond = max(k - terms, 0)
        weight = (extra >= beyond).to(x) / continuation**beyond
        total = total + (-1) ** (k + 1) / k * weight * (products * probes).sum((-2, -1))
    return total.mean(0)
