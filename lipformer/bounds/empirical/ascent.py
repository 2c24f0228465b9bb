"""The search for inputs where a function is steep."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lipformer.bounds.empirical.local import Function, LocalConstant, climb, local_lipschitz, measuring
from lipformer.functional.linearization import Linearization
from lipformer.functional.spectral import Norm, parse_norm


class Ascent(NamedTuple):
    """The result of an ascent."""

    x: Float[Tensor, "B *shape"]
    """The steepest input met from each start."""
    constant: LocalConstant
    """The local constants of f at these inputs."""


def ascend(
    f: Function,
    x: Float[Tensor, "B *shape"],
    p: Norm = 2,
    *,
    steps: int = 200,
    lr: float = 0.05,
    radius: float | None = None,
    restarts: int | None = None,
    generator: torch.Generator | None = None,
) -> Ascent:
    r"""Move the inputs to where the local constant is large.

    .. math:: \max_X \|J(X)\|_p, \qquad \nabla_X \|J(X)\|_p = \nabla_X \langle u, J(X) v\rangle

    with u, v the maximisers at X, constants to the derivative (Danskin). They follow X by a few products a step;
    Adam on the logarithm of the value moves X, each batch element by itself. The result is as deterministic as f.

    Args:
        f: as in :func:`~lipformer.bounds.empirical.local_lipschitz`; three times differentiable.
        x: where the B searches start, (B, N, D). Several starts are a batch: local maxima are many.
        p: 2, ``math.inf`` or "mixed".
        steps: number of steps of Adam.
        lr: learning rate of Adam, in units of the inputs' entries.
        radius: largest Euclidean norm of a token, to which it is projected after each step; None for no limit.
        restarts: number of restarts of the measurement at the first and last inputs.
        generator: random numbers for the starts of u and v; None for one with a fixed seed.

    Returns:
        The steepest inputs met, and their constants, measured anew: lower bounds of f's Lipschitz constant (on the
        ball of ``radius``, where one is given).

    Raises:
        ValueError: as for ``local_lipschitz``.

    References: Kim et al. 2021, sec. 5.1 (Adam on the inputs); Danskin 1967 for the derivative.
    """
    p = parse_norm(p)
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    with measuring(f, x) as (_, copy):
        point = copy if radius is None else _to_ball(copy, radius)
    first = local_lipschitz(f, point, p, restarts=restarts, generator=generator)
    u, best_x, best_v, best_value = first.functional, point, first.direction, first.value
    with measuring(f, point) as (function, point):
        optimizer = torch.optim.Adam([point], lr=lr, betas=(0.9, 0.99))
        for _ in range(steps):
            point.requires_grad_()
            linear = Linearization(function, point)
            here = climb(linear, u, p, tolerance=0.0, max_iterations=FOLLOWING)
            u, v = here.functional, here.direction
            higher = here.value > best_value
            best_value = torch.where(higher, here.value, best_value)
            best_x, best_v = (
                torch.where(higher.reshape(-1, *[1] * (new.dim() - 1)), new, old)
                for new, old in ((point.detach(), best_x), (v, best_v))
            )
            slope = linear.gain(u, v) / here.value.clamp_min(torch.finfo(v.dtype).tiny)
            (point.grad,) = torch.autograd.grad(-slope.sum(), point, materialize_grads=True)
            optimizer.step()
            if radius is not None:
                with torch.no_grad():
                    point.copy_(_to_ball(point, radius))
    found = local_lipschitz(f, best_x, p, restarts=restarts, start=best_v, generator=generator)
    return Ascent(best_x, found)


FOLLOWING = 3  # alternations a step that let u and v follow x


def _to_ball(x: Tensor, radius: float) -> Tensor:
    """Project each token onto the ball."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * (radius / norm.clamp_min(radius))
