r"""Lipschitz constants of a function at given points, measured from below.

Legend: J the Jacobian at x of a batch element's output by its own input; p, q dual exponents (2 and 2, inf and
1, "mixed" and the sum of Euclidean token norms).
"""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.func import functional_call

from lipformer.functional.linearization import Linearization
from lipformer.functional.precision import at_least_float32
from lipformer.functional.sequence_norms import norming_functional, sequence_norm, steepest_point
from lipformer.functional.spectral import Norm, parse_norm
from lipformer.modules.contexts import explicit

Function = Callable[[Tensor], Tensor]


class LocalConstant(NamedTuple):
    """A local constant that was measured. Every ``value`` is a lower bound, whether or not the iteration converged."""

    value: Float[Tensor, " B"]
    """Largest ``|J v|_p / |v|_p`` found, one per batch element; nan where f is not finite."""
    iterations: int
    """Alternations of the start that took most: a product with J' and one with J each."""
    converged: Bool[Tensor, " B"]
    """Whether the best start's iteration is within the tolerance of where it leads, which may be a local maximum."""
    direction: Float[Tensor, "B *shape"]
    """The v with ``|v|_p = 1`` that attains the value."""
    functional: Float[Tensor, "B *out"]
    """The u with dual norm one and ``<u, J v>`` the value."""


def local_lipschitz(
    f: Function,
    x: Float[Tensor, "B *shape"],
    p: Norm = 2,
    *,
    tolerance: float = 1e-3,
    max_iterations: int = 200,
    restarts: int | None = None,
    start: Float[Tensor, "B *shape"] | None = None,
    generator: torch.Generator | None = None,
) -> LocalConstant:
    r"""Largest ``|J v|_p / |v|_p`` of each batch element, by an ascent that needs products with J and J' only.

    .. math:: \|J\|_p = \max_{\|v\|_p = 1} \|J v\|_p = \max \{ \langle u, J v\rangle : \|u\|_q = \|v\|_p = 1 \}

    Alternately the best u for the present v (which norms J v) and the best v for this u (which norms J' u); the
    value never falls. In the 2-norm that is power iteration on J'J, which from almost every start leads to the
    norm, if at times past the second singular value, where it may seem to have arrived; in the other two it leads to
    a local maximum. Hence several starts, for these two in the outputs that random inputs move most. Each value is
    attained by a v that is returned: a lower bound of the local constant up to rounding, and so of the global one.
    Never a certificate.

    The iteration has converged where what it would still gain, its last gain continued as a geometric series, is
    below ``tolerance`` *times the value*: a threshold on the gain itself would stop at once on a flat function and
    never on a steep one.

    It also works inside ``torch.no_grad`` and ``torch.inference_mode``, under autocast (which it leaves), and in
    half precision (which it raises to float32). A module is called with copies of its parameters and buffers, by
    its explicit path, in the mode it is in, dropout drawn once; neither it nor any random state is changed.

    Args:
        f: a module, a method of one, or any function, twice differentiable; batch elements must not influence
            each other.
        x: (B, N, D), or any shape with the batch first.
        p: 2, ``math.inf`` or "mixed".
        tolerance: relative tolerance.
        max_iterations: largest number of iterations from each start.
        restarts: random starts; None for 2 in the 2-norm and 16 in the others.
        start: one more v to start from; the value is at least ``|J v|_p / |v|_p`` of it.
        generator: random numbers for the starts; None for one with a fixed seed.

    Raises:
        ValueError: unknown ``p``, or fewer than one iteration or start.

    References: Boyd 1974, Linear Algebra Appl. 9; Higham 1992, Numer. Math. 62 (operator p-norms). Absolute
    threshold on the squared value instead: code of Castin et al. 2024, arXiv 2312.14820.
    """
    p = parse_norm(p)
    restarts = (2 if p == 2 else 16) if restarts is None else restarts
    if max_iterations < 1 or restarts < 1:
        raise ValueError(f"max_iterations={max_iterations} and restarts={restarts} must be at least 1")
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    with measuring(f, x) as (function, point):
        linear = Linearization(function, point)
        probes = [
            torch.randn(x.shape, generator=generator, dtype=point.dtype, device=generator.device).to(point.device)
            for _ in range(restarts)
        ]
        starts = [
            *([] if start is None else [norming_functional(linear.jvp(start.to(point)), p)]),
            *_starts(linear, probes, p),
        ]
        return functools.reduce(_better, (climb(linear, u, p, tolerance, max_iterations) for u in starts))


def _starts(linear: Linearization, probes: list[Tensor], p: Norm) -> list[Float[Tensor, "B *out"]]:
    """Functionals to climb from, one a probe: on the outputs that move most, which in inf and "mixed" count alone.

    Of independent normal inputs the mean squared image of an output is its squared row norm, so that a few of them
    rank all rows (or tokens) at once.
    """
    images = [linear.jvp(steepest_point(probe, 2)) for probe in probes]
    if p == 2:
        return [norming_functional(image, p) for image in images]
    squares = torch.stack(images).square().sum(0)
    sizes = (squares.sum(-1, keepdim=True) if p == "mixed" else squares).flatten(1)
    ranks = sizes.topk(min(len(probes), sizes.shape[1]), dim=1).indices
    starts = []
    for image, best in zip(images, itertools.cycle(ranks.split(1, dim=1)), strict=False):
        one_hot = torch.zeros_like(sizes).scatter_(1, best, 1.0)
        shape = (*image.shape[:-1], 1) if p == "mixed" else image.shape
        starts.append(norming_functional(image * one_hot.reshape(shape), p))
    return starts


def climb(
    linear: Linearization, u: Float[Tensor, "B *out"], p: Norm, tolerance: float, max_iterations: int
) -> LocalConstant:
    """Ascend from one functional u, as :func:`local_lipschitz` says; other arguments as there."""
    v = torch.zeros_like(linear.x)
    value = gain = torch.full_like(sequence_norm(v, p), torch.nan)  # nan, which no comparison is true for
    noise = 8 * torch.finfo(value.dtype).eps
    converged, iterations = torch.zeros_like(value, dtype=torch.bool), 0
    while iterations < max_iterations and not converged.all():
        iterations += 1
        v = steepest_point(linear.vjp(u), p)
        image = linear.jvp(v)
        before, gain_before = value, gain
        value, u = sequence_norm(image, p), norming_functional(image, p)
        gain = value - before
        ratio = gain / gain_before
        to_come = torch.where(ratio < 1, gain * ratio / (1 - ratio), torch.inf)
        converged = (to_come <= tolerance * value) | (gain <= noise * value)
    return LocalConstant(value, iterations, converged, v, u)


@contextmanager
def measuring(f: Function, x: Float[Tensor, "B *shape"]) -> Iterator[tuple[Function, Float[Tensor, "B *shape"]]]:
    """Yield ``f`` and ``x`` such that they can be differentiated in any context, without side effects.

    Args:
        f: as in :func:`local_lipschitz`.
        x: the points, copied, at least in float32.
    """
    owner: object
    owner, method = (f.__self__, f.__func__) if inspect.ismethod(f) else (f, None)
    devices = [x.device] if x.device.type == "cuda" else []
    with (
        torch.inference_mode(False),  # tensors made outside are copied: those of inference mode have no derivatives
        torch.enable_grad(),
        torch.autocast(x.device.type, enabled=False),
        torch.random.fork_rng(devices),
        explicit(owner),
    ):
        if isinstance(owner, nn.Module):
            f = _with_copies(owner if method is None else _Method(owner, method))
        yield f, at_least_float32(x.detach().clone())


def _with_copies(module: nn.Module) -> Function:
    """Return the module as a function of its input alone, with copies of its parameters and buffers."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    copies = {name: at_least_float32(tensor.detach().clone()) for name, tensor in tensors}

    def function(x: Tensor) -> Tensor:
        return functional_call(module, copies, (x,))

    return function


class _Method(nn.Module):
    """A module that calls a method of its only child."""

    def __init__(self, owner: nn.Module, method: Callable[[nn.Module, Tensor], Tensor]):
        super().__init__()
        self.owner, self.method = owner, method

    def forward(self, x: Tensor) -> Tensor:
        return self.method(self.owner, x)


def _better(one: LocalConstant, other: LocalConstant) -> LocalConstant:
    """Return the larger of two local constants for each batch element."""
    wins = other.value > one.value

    def choose(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(wins.reshape(-1, *[1] * (a.dim() - 1)), b, a)

    return LocalConstant(
        choose(one.value, other.value),
        max(one.iterations, other.iterations),
        choose(one.converged, other.converged),
        choose(one.direction, other.direction),
        choose(one.functional, other.functional),
    )


def pairwise_ratios(
    f: Function, x: Float[Tensor, "B *shape"], y: Float[Tensor, "B *shape"], p: Norm = 2
) -> Float[Tensor, " B"]:
    r"""Secant slopes, each a lower bound of the Lipschitz constant up to rounding; 0 where x = y.

    .. math:: \|f(x_b) - f(y_b)\|_p \,/\, \|x_b - y_b\|_p

    Args:
        f: as in :func:`local_lipschitz`, and with the same care for it.
        x: (B, N, D), or any shape with the batch first.
        y: of the shape of x.
        p: 2, ``math.inf`` or "mixed".
    """
    p = parse_norm(p)
    with measuring(f, x) as (function, one), torch.no_grad():
        other = y.detach().to(one)
        devices = [one.device] if one.device.type == "cuda" else []
        with torch.random.fork_rng(devices):  # both evaluations draw the same random numbers
            image = function(one)
        distance = sequence_norm(one - other, p)
        return torch.where(distance == 0, 0.0, sequence_norm(image - function(other), p) / distance)
