"""Hold every layer of the table in ``laws.py`` to what it promises, in float64."""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
import torch
from jacobians import NORMS, apply, block_row_sum, jacobian
from laws import ALL_NORMS, KINDS, Kind
from torch import Tensor, nn

WIDTH, TOKENS = 4, 5


def randomise(layer: nn.Module, generator: torch.Generator) -> None:
    """Draw weights from one of five families, at a scale from 10^-1.5 to 10^1.5.

    Of parameters with more than two dimensions each of the matrices; vectors and scalars are drawn entry by entry.
    """
    family = int(torch.randint(5, (), generator=generator))
    with torch.no_grad():
        for weight in layer.parameters():
            matrix = weight.dim() >= 2
            fresh = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            if family == 1 and matrix:  # low rank: directions that queries do not see
                row = (*weight.shape[:-2], 1, weight.shape[-1])
                fresh = fresh[..., :1] @ torch.randn(row, generator=generator, dtype=weight.dtype)
            elif family == 2:  # nearly the identity
                one = torch.eye(*weight.shape[-2:], dtype=weight.dtype) if matrix else torch.ones_like(weight)
                fresh = one + 0.1 * fresh
            elif family == 3:  # sparse
                fresh = fresh * (torch.rand(weight.shape, generator=generator) < 0.3)
            elif family == 4:  # rows of very different size
                sizes = (*weight.shape[:-1], 1) if matrix else weight.shape
                fresh = fresh * 10 ** torch.randn(sizes, generator=generator, dtype=weight.dtype)
            weight.copy_(fresh * 10 ** (3 * torch.rand((), generator=generator) - 1.5))


def random_tokens(generator: torch.Generator, count: int) -> Tensor:
    """Inputs over six decades of scale, half of them with a common offset."""
    x = torch.randn(count, TOKENS, WIDTH, generator=generator, dtype=torch.float64)
    x = x * 10 ** (6 * torch.rand(count, 1, 1, generator=generator) - 3)
    offset = torch.randn(count, 1, WIDTH, generator=generator, dtype=torch.float64)
    return x + torch.where(torch.arange(count) % 2 == 0, 0.0, 10.0)[:, None, None] * offset


def shape_is_kept(kind: Kind) -> None:
    layer = kind.build(WIDTH)
    for tokens in (1, 2, TOKENS):
        x = torch.randn(3, tokens, WIDTH, dtype=torch.float64)
        assert layer(x).shape == x.shape
        assert layer(x).dtype == x.dtype


def past_ignores_future(kind: Kind) -> None:
    layer = kind.build(WIDTH, causal=True)
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    for cut in range(1, TOKENS):
        changed = torch.cat([x[:, :cut], 100 * torch.randn(2, TOKENS - cut, WIDTH, dtype=torch.float64)], 1)
        for path in paths(layer):
            torch.testing.assert_close(path(changed)[:, :cut], path(x)[:, :cut], rtol=1e-12, atol=1e-13)


def padding_and_batch_do_not_matter(kind: Kind) -> None:
    layer = kind.build(WIDTH, causal=True)
    short, long = torch.randn(3, WIDTH, dtype=torch.float64), torch.randn(TOKENS, WIDTH, dtype=torch.float64)
    batch = torch.zeros(2, TOKENS, WIDTH, dtype=torch.float64)
    batch[0, :3], batch[1] = short, long
    for path in paths(layer):
        together = path(batch)
        torch.testing.assert_close(together[0, :3], path(short[None])[0], rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(together[1], path(long[None])[0], rtol=1e-12, atol=1e-13)


def permutation_commutes(kind: Kind) -> None:
    layer = kind.build(WIDTH, causal=False)
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    order = torch.randperm(TOKENS)
    for path in paths(layer):
        torch.testing.assert_close(path(x[:, order]), path(x)[:, order], rtol=1e-12, atol=1e-13)


def fused_equals_explicit(kind: Kind) -> None:
    for causal in (True, False):
        layer = kind.build(WIDTH, causal=causal)
        x = 3 * torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
        results = []
        for fused in (True, False):
            leaf = x.clone().requires_grad_()
            y = layer(leaf, fused=fused)
            results.append((y, *torch.autograd.grad(y.square().sum(), [leaf, *layer.parameters()])))
        for fast, reference in zip(*results, strict=True):
            torch.testing.assert_close(fast, reference, rtol=1e-11, atol=1e-13)


def derivatives_are_right(kind: Kind) -> None:
    """First and second derivatives, of inputs and weights, against finite differences."""
    layer = kind.build(WIDTH)
    x = torch.randn(1, 3, WIDTH, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in layer.named_parameters()]
    weights = tuple(weight.detach().requires_grad_() for weight in layer.parameters())

    def call(tokens: Tensor, *values: Tensor) -> Tensor:
        keywords = {"fused": False} if kind.fused else {}
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (tokens,), keywords)

    assert torch.autograd.gradcheck(call, (x, *weights))
    assert torch.autograd.gradgradcheck(call, (x, *weights), fast_mode=True)
    tangent = torch.randn_like(x)
    _, forward_mode = torch.func.jvp(lambda t: call(t, *weights), (x.detach(),), (tangent,))
    matrix = torch.autograd.functional.jacobian(lambda t: call(t, *weights), x.detach())
    torch.testing.assert_close(forward_mode.flatten(), matrix.reshape(x.numel(), -1) @ tangent.flatten())


def bounds_are_tensors(kind: Kind) -> None:
    layer = kind.build(WIDTH)
    for p in ALL_NORMS:
        bound = layer.lipschitz_bound(p)
        assert bound.shape == ()
        assert bound.dtype == torch.float64
        assert bound.isfinite().item() == (p in kind.lipschitz)
        assert not bound.isnan()
        assert layer.lipschitz_bound(p, length=2) <= bound
    for p, limit in kind.contracts.items():
        assert layer.lipschitz_bound(p) <= limit < 1
    with pytest.raises(ValueError, match="p must be"):
        layer.lipschitz_bound(3)


def bound_exceeds_random_jacobians(kind: Kind, weights: int = 8, inputs: int = 12) -> None:
    generator = torch.Generator().manual_seed(1)
    for case in range(weights):
        layer = kind.build(WIDTH, context=TOKENS, causal=case % 2 == 0)
        randomise(layer, generator)
        jac = jacobian(layer, random_tokens(generator, inputs)).detach()
        for p in kind.lipschitz:
            bound = layer.lipschitz_bound(p)
            assert NORMS[p](jac).max() <= bound * (1 + 1e-9) + 1e-300
            assert bound <= kind.contracts.get(p, math.inf)
        if "mixed" in kind.lipschitz and getattr(layer, "heads", None) == 1:
            assert block_row_sum(jac).max() <= layer.lipschitz_bound("mixed") * (1 + 1e-9)


def bound_withstands_ascent(kind: Kind, attempts: int = 6, steps: int = 20) -> None:
    """Gradient ascent on |J| over the inputs and, where they count, log |J| - log bound over the weights."""
    generator = torch.Generator().manual_seed(2)
    for p in kind.lipschitz:
        for causal in (True, False):
            layer = kind.build(WIDTH, context=TOKENS, causal=causal)
            x = random_tokens(generator, attempts).requires_grad_()
            optimizer = torch.optim.Adam([x, *layer.parameters()], lr=0.1)
            for _ in range(steps):
                optimizer.zero_grad()
                ratios = NORMS[p](jacobian(layer, x)) / layer.lipschitz_bound(p)
                assert ratios.max() <= 1 + 1e-9
                ratios.clamp_min(1e-300).log().sum().neg().backward()
                optimizer.step()


def bound_withstands_large_moves(kind: Kind, weights: int = 3) -> None:
    """Tokens far away together, or from each other where some linear map sees it least: not at all, if of low rank."""
    generator = torch.Generator().manual_seed(4)
    for case in range(weights):
        layer = kind.build(WIDTH, context=TOKENS, causal=case % 2 == 0)
        randomise(layer, generator)
        here = torch.randn(TOKENS, WIDTH, generator=generator, dtype=torch.float64)
        inputs = []
        for size in 10.0 ** torch.arange(0, 7, 2):
            inputs.append(here + size * torch.randn(WIDTH, generator=generator, dtype=torch.float64))
            for matrix in matrices_of_tokens(layer):
                blind = torch.linalg.svd(matrix).Vh[-1]
                signs = torch.randn(TOKENS, 1, generator=generator, dtype=torch.float64)
                inputs.append(here + size * signs * blind)
        jac = jacobian(layer, torch.stack(inputs)).detach()
        for p in kind.lipschitz:
            # Sixteen digits less the six of the move.
            assert NORMS[p](jac).max() <= layer.lipschitz_bound(p) * (1 + 1e-7) + 1e-300


def matrices_of_tokens(layer: nn.Module) -> list[Tensor]:
    """Each head's matrix, and each whole one, that linear maps apply to tokens."""
    whole = [
        linear.weight.detach()
        for linear in layer.modules()
        if isinstance(linear, nn.Linear) and linear.weight.shape[1] == WIDTH
    ]
    return whole + [part for matrix in whole for part in matrix.chunk(2)]


def bound_withstands_large_weights(kind: Kind) -> None:
    """Two tokens of a size that suits the weights: a constant may grow with the square of W^Q, and a bound has to."""
    for size in (1.0, 10.0, 1e3, 1e5):
        layer = kind.build(WIDTH, context=2)
        with torch.no_grad():
            for weight in layer.parameters():
                if weight.dim() >= 2:
                    weight.copy_(size * torch.eye(*weight.shape[-2:], dtype=weight.dtype))
        gaps = torch.linspace(0.1, 4, 40, dtype=torch.float64) / size
        x = torch.zeros(40, 2, WIDTH, dtype=torch.float64)
        x[:, 1] = gaps[:, None]
        jac = jacobian(layer, x).detach()
        for p in kind.lipschitz:
            assert NORMS[p](jac).max() <= layer.lipschitz_bound(p) * (1 + 1e-9)


def ball_bound_exceeds_jacobians(kind: Kind, weights: int = 6, inputs: int = 12, steps: int = 6) -> None:
    """Jacobians at random tokens of at most the radius, then at tokens that climb inside the ball."""
    generator = torch.Generator().manual_seed(3)
    assert all(kind.build(WIDTH).lipschitz_bound_on_ball(1.0, p).isfinite() for p in ALL_NORMS)
    for case in range(weights):
        layer = kind.build(WIDTH, context=TOKENS, causal=case % 2 == 0)
        randomise(layer, generator)
        radius = 10 ** (2 * torch.rand((), generator=generator, dtype=torch.float64) - 1)
        x = random_tokens(generator, inputs).requires_grad_()
        p = ALL_NORMS[case % len(ALL_NORMS)]
        bound = layer.lipschitz_bound_on_ball(radius, p)
        assert bound.dtype == torch.float64
        assert bound.shape == ()
        assert not bound.isnan()
        assert layer.lipschitz_bound_on_ball(radius / 2, p) <= bound
        assert layer.lipschitz_bound_on_ball(radius, p, length=2) <= bound
        optimizer = torch.optim.Adam([x], lr=0.1 * float(radius))
        for _ in range(steps):
            with torch.no_grad():
                x.mul_((radius / x.norm(dim=-1, keepdim=True)).clamp_max(1))
            optimizer.zero_grad()
            norms = NORMS[p](jacobian(layer, x))
            assert norms.max() <= bound * (1 + 1e-9) + 1e-300
            norms.clamp_min(1e-300).log().sum().neg().backward()
            optimizer.step()


def witness_grows(kind: Kind) -> None:
    """Each tenfold of the witness's scale multiplies every norm of the Jacobian at least tenfold."""
    for p in ALL_NORMS:
        norms = [NORMS[p](jacobian(*kind.witness(scale))).item() for scale in (1, 10, 100, 1000)]
        assert all(later > 10 * earlier for earlier, later in pairwise(norms)), norms


LAWS: list[tuple[Callable[[Kind], None], Callable[[Kind], bool]]] = [
    (shape_is_kept, lambda kind: True),
    (past_ignores_future, lambda kind: kind.causal),
    (padding_and_batch_do_not_matter, lambda kind: kind.causal),
    (permutation_commutes, lambda kind: kind.equivariant),
    (fused_equals_explicit, lambda kind: kind.fused),
    (derivatives_are_right, lambda kind: kind.climbs),
    (bounds_are_tensors, lambda kind: True),
    (bound_exceeds_random_jacobians, lambda kind: bool(kind.lipschitz)),
    (bound_withstands_ascent, lambda kind: bool(kind.lipschitz) and kind.climbs and not kind.combined),
    (bound_withstands_large_moves, lambda kind: bool(kind.lipschitz)),
    (bound_withstands_large_weights, lambda kind: bool(kind.lipschitz)),
    (ball_bound_exceeds_jacobians, lambda kind: kind.ball),
    (witness_grows, lambda kind: kind.witness is not None),
]


def cases() -> Iterator:
    for kind in KINDS:
        for law, applies in LAWS:
            if applies(kind):
                yield pytest.param(kind, law, id=f"{kind.name}-{law.__name__}")


def paths(layer: nn.Module) -> list[Callable[[Tensor], Tensor]]:
    """Every way to run a layer."""
    if hasattr(layer, "fused"):
        return [lambda x: layer(x, fused=True), lambda x: layer(x, fused=False)]
    return [lambda x: apply(layer, x)]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Thousands of tiny operations: a second thread would only be waited for."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("kind", "law"), list(cases()))
def test_law(kind: Kind, law: Callable[[Kind], None]) -> None:
    torch.manual_seed(0)
    law(kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS if kind.lipschitz])
def test_bound_under_heavy_attack(kind: Kind) -> None:
    """10,000 random and 100 adversarially ascended Jacobians for each norm."""
    torch.manual_seed(0)
    bound_exceeds_random_jacobians(kind, weights=200, inputs=50)
    if kind.climbs:
        bound_withstands_ascent(kind, attempts=50, steps=300)
    bound_withstands_large_moves(kind, weights=50)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS if kind.ball])
def test_ball_bound_under_heavy_attack(kind: Kind) -> None:
    """Many weights, radii and starts, ascended for longer."""
    torch.manual_seed(0)
    ball_bound_exceeds_jacobians(kind, weights=90, inputs=25, steps=60)
