r"""The inverse of a residual, :math:`x + f(x) = y`, by Banach's iteration.

Legend: B batch, N tokens, D width, c < 1 the contraction constant of f in some norm.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lipformer.functional.precision import HALF
from lipformer.functional.spectral import Norm, parse_norm

PATIENCE = 20
"""Largest number of iterations near rounding level without a new smallest step."""

TARGET, FLOOR = 1, 256
"""In eps of the dtype: a step that ends the iteration, and one that may not get smaller any more.

If one evaluation rounds by delta, steps obey d' = c d + 2 delta at worst and stay near 2 delta / (1 - c).
"""


class NotConvergedWarning(UserWarning):
    """A fixed point was not reached; ``Solution.residual`` says how far the result is from one."""


@dataclass(frozen=True)
class Solution:
    """The result of :func:`solve`."""

    x: Float[Tensor, "B N D"]
    """The solution, or the last finite iterate where there is none."""
    iterations: int
    """Evaluations of f, as many as the slowest element of the batch took."""
    residual: Float[Tensor, " B"]
    """Largest entry of abs(x + f(x) - y), as computed, of each element; inf where it is not a number."""
    converged: bool
    """Whether the residual of every element is within the tolerance."""
    layers: int = 1
    """Number of layers that were inverted, one after the other, to find x."""

    def error_bound(self, contraction: float, p: Norm) -> Float[Tensor, " B"]:
        r"""Bound on the largest entry of abs(x - x*), x* the exact solution.

        .. math:: \max|x - x^*| \le \|x - x^*\|_p \le \frac{\|x + f(x) - y\|_p}{1 - c}
                  \le \frac{m_p}{1 - c} \max |x + f(x) - y|

        with m = 1, sqrt(D), sqrt(N D) for p = inf, mixed, 2. Up to the rounding of f in ``residual``. Of one residual:
        behind it another layer may have amplified the error, or hidden it from the residual.

        Args:
            contraction: c in [0, 1), a Lipschitz constant of f in the norm p itself. (``contraction_bound`` of a layer
                is one in the layer's own norm, which may be none of these.)
            p: 2, ``math.inf`` or "mixed".

        Raises:
            ValueError: c outside [0, 1); a solution through several layers.
        """
        if self.layers != 1:
            raise ValueError(f"the error bound is that of one residual, and this solution undid {self.layers} layers")
        if not 0 <= contraction < 1:
            raise ValueError(f"contraction must be in [0, 1), not {contraction}")
        _, tokens, width = self.x.shape
        entries = {math.inf: 1, "mixed": width, 2: tokens * width}[parse_norm(p)]
        return self.residual * math.sqrt(entries) / (1 - contraction)


@torch.no_grad()
def solve(
    f: Callable[[Tensor], Tensor],
    y: Float[Tensor, "B N D"],
    *,
    tolerance: float | None = None,
    max_iterations: int = 2000,
    start: Float[Tensor, "B N D"] | None = None,
    method: Literal["parallel", "sequential"] = "parallel",
) -> Solution:
    r"""Find x with x + f(x) = y.

    .. math:: x \leftarrow y - f(x)

    converges from everywhere, by the factor c in each iteration, if f contracts in one norm, whichever. A step is
    the residual of the x before it. Elements of the batch that are done are frozen and no longer evaluated, so f must
    treat each by itself, and give the same for the same input (no dropout). An element ends when its step

    * is at most ``tolerance`` times the largest entry of its x or y: converged;
    * is below sqrt(eps) of that entry and no smaller one has come for 20 iterations: rounding is all that moves x;
    * is not finite: at once, with the x before it.

    Whatever does not converge raises a :class:`NotConvergedWarning`. No gradient passes through.

    Args:
        f: the branch, ``(B, N, D) -> (B, N, D)``, for any B.
        y: outputs, in float32 or float64.
        tolerance: relative, to x too, for no x + f(x) is more accurate. None for as small as rounding permits: one eps
            of the dtype, or up to 256 eps where x moves no more.
        max_iterations: for each element, in "sequential" for each token. c = 0.97 needs 1200 in float64.
        start: where to begin; None for y.
        method: "parallel" iterates all tokens together. "sequential", for causal f, solves token after token given
            those before it, evaluating f on prefixes, then checks the whole by "parallel": the same solution for
            about N times as many evaluations, never faster (bench/invert.py). What it has for itself are f whose
            Jacobian is large off its diagonal blocks: there "parallel" passes through large iterates.

    Raises:
        ValueError: y is not (B, N, D) or in half precision, whose rounding drowns most branches; ``start`` of another
            shape; ``tolerance`` negative or not a number; ``max_iterations`` below 1; unknown ``method``.

    References: Behrmann et al. 2019, Algorithm 1, arXiv 1811.00995.
    """
    if y.dim() != 3:
        raise ValueError(f"expected tokens of shape (B, N, D), not {tuple(y.shape)}")
    if not y.is_floating_point() or y.dtype in HALF:
        raise ValueError(f"a fixed point needs float32 or float64, not {y.dtype}")
    if method not in ("parallel", "sequential"):
        raise ValueError(f'method must be "parallel" or "sequential", not {method!r}')
    if tolerance is not None and not tolerance >= 0:
        raise ValueError(f"tolerance must not be negative, but is {tolerance}")
    if max_iterations < 1:
        raise ValueError(f"max_iterations must be at least 1, not {max_iterations}")
    if start is not None and start.shape != y.shape:
        raise ValueError(f"start must have the shape of y, {tuple(y.shape)}, not {tuple(start.shape)}")
    if y.numel() == 0:
        return Solution(y.clone(), 0, y.new_zeros(len(y)), True)
    eps = torch.finfo(y.dtype).eps
    target, floor = (TARGET * eps, FLOOR * eps) if tolerance is None else (tolerance, tolerance)
    x = y.clone() if start is None else start.to(y, copy=True)
    evaluations = 0
    if method == "sequential":
        for token in range(y.shape[1]):
            prefix, here = x[:, :token], slice(token, token + 1)

            def last(tokens: Tensor, rows: Tensor, prefix: Tensor = prefix) -> Tensor:
                return f(torch.cat([prefix[rows], tokens], 1))[:, -1:]

            x[:, here], used, _, _ = _iterate(last, y[:, here], x[:, here], target, floor, max_iterations)
            evaluations += used
    x, used, residual, converged = _iterate(lambda tokens, _: f(tokens), y, x, target, floor, max_iterations)
    solution = Solution(x, evaluations + used, residual, bool(converged.all()))
    if not solution.converged:
        warnings.warn(
            f"{int((~converged).sum())} of {len(y)} inputs reached no fixed point in {solution.iterations} "
            f"iterations: largest residual {residual.max().item():.3g}, relative tolerance {floor:.3g}",
            NotConvergedWarning,
            stacklevel=3,  # without the decorator
        )
    return solution


def _iterate(
    f: Callable[[Tensor, Tensor], Tensor], y: Tensor, start: Tensor, target: float, floor: float, max_iterations: int
) -> tuple[Tensor, int, Tensor, Tensor]:
    """Iterate x <- y - f(x, rows), x being the ``rows`` that are not done; return x, count, residuals, converged."""
    x = start.clone()
    eps, tiny = torch.finfo(y.dtype).eps, torch.finfo(y.dtype).tiny
    rows = torch.arange(len(y), device=y.device)
    residual, smallest = torch.full_like(y[:, 0, 0], math.inf), torch.full_like(y[:, 0, 0], math.inf)
    converged, idle = torch.zeros_like(rows, dtype=torch.bool), torch.zeros_like(rows)
    for iteration in range(1, max_iterations + 1):
        before, goal = x[rows], y[rows]
        after = goal - f(before, rows)
        step = _largest(after - before)
        scale = torch.maximum(_largest(before), _largest(goal)).clamp_min(tiny)
        idle[rows] = torch.where(step < smallest[rows], 0, idle[rows] + 1)
        smallest[rows] = torch.minimum(step, smallest[rows])
        stuck = (idle[rows] >= PATIENCE) & (step <= math.sqrt(eps) * scale)
        small = (step <= target * scale) | (stuck & (step <= floor * scale))
        residual[rows], converged[rows] = step, small
        going = step.isfinite() & ~small & ~stuck
        rows = rows[going]
        if len(rows) == 0 or iteration == max_iterations:  # keep the x whose residual is known
            break
        x[rows] = after[going]
    return x, iteration, residual.nan_to_num(nan=math.inf, posinf=math.inf), converged


def _largest(x: Tensor) -> Tensor:
    """Max-norm of each element of the batch."""
    return x.abs().amax((1, 2))
