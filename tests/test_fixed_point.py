"""Inverses of residuals: found where they exist, never claimed where they do not."""

import math
import warnings

import pytest
import torch
from torch import Tensor

from lipformer.functional.spectral import Norm
from lipformer.modules.attention import ContractiveL2Attention, DotProductAttention
from lipformer.modules.fixed_point import NotConvergedWarning, Solution, solve

METHODS = ("parallel", "sequential")
NORMS: tuple[Norm, ...] = (2, math.inf, "mixed")
EPS = torch.finfo(torch.float64).eps


def tokens(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def contractive(p: Norm = "mixed", scale: float = 0.97, **keywords) -> ContractiveL2Attention:
    torch.manual_seed(0)
    return ContractiveL2Attention(4, 2, context=6, p=p, scale=scale, **keywords).double()


def quietly(f, y: Tensor, **keywords) -> Solution:
    """Solve without a warning, or fail."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return solve(f, y, **keywords)


class Counted:
    """A branch that remembers what it was called with."""

    def __init__(self, f):
        self.f, self.shapes = f, []

    def __call__(self, x: Tensor) -> Tensor:
        self.shapes.append(tuple(x.shape))
        return self.f(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("p", NORMS)
def test_contractive_attention_is_inverted(p, method, dtype):
    layer, x = contractive(p).to(dtype), tokens(3, 6, 4, dtype=dtype)
    with torch.no_grad():
        y = x + layer(x)
    solution = quietly(layer, y, method=method)
    assert solution.converged
    room = 8 * torch.finfo(dtype).eps * y.abs().max() / (1 - layer.scale)  # y is rounded too
    assert ((solution.x - x).abs().amax((1, 2)) <= solution.error_bound(layer.scale, p) + room).all()


@pytest.mark.parametrize("p", NORMS)
def test_methods_agree(p):
    layer, y = contractive(p), tokens(3, 6, 4, seed=1)
    one, other = (quietly(layer, y, method=method).x for method in METHODS)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-13)
    assert not torch.equal(one, y)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("norm", [0.5, 0.97])
def test_linear_map_with_known_inverse(norm, method):
    matrix = tokens(3, 3, seed=2)
    matrix = norm * torch.linalg.qr(matrix).Q  # as slow as the norm allows
    y = tokens(2, 4, 3)
    solution = quietly(lambda x: x @ matrix, y, method=method)
    expected = y @ torch.linalg.inv(torch.eye(3).double() + matrix)
    error = (solution.x - expected).abs().amax((1, 2))
    assert (error <= solution.error_bound(norm, "mixed") + 100 * EPS).all()


def test_sequential_needs_only_the_diagonal_blocks():
    y = tokens(2, 6, 3)
    future = torch.ones(6, 6, dtype=torch.float64).tril(-1)
    solution = quietly(lambda x: 50 * future[: x.shape[1], : x.shape[1]] @ x.sin(), y, method="sequential")
    assert solution.iterations <= 2 * 6 + 2  # a token is there after one step and known to be after two
    assert (solution.x + 50 * future @ solution.x.sin() - y).abs().max() <= 1e-12
    # So does the joint iteration in the end, for it contracts in max_i eps^i |x_i|.
    parallel = quietly(lambda x: 50 * future @ x.sin(), y)
    assert parallel.iterations <= 6 + 1
    torch.testing.assert_close(parallel.x, solution.x, rtol=0, atol=1e-6)


def test_sequential_of_what_is_not_causal_is_still_a_solution():
    layer, y = contractive(causal=False), tokens(2, 5, 4)
    torch.testing.assert_close(quietly(layer, y, method="sequential").x, quietly(layer, y).x, rtol=0, atol=1e-13)


@pytest.mark.parametrize("method", METHODS)
def test_no_fixed_point_is_never_silent(method):
    torch.manual_seed(0)
    layer = DotProductAttention(4, 2, context=6).double()
    y = 30 * tokens(2, 6, 4)
    with pytest.warns(NotConvergedWarning, match="2 of 2 inputs"):
        solution = solve(lambda x: 20 * layer(x), y, method=method, max_iterations=60)
    assert not solution.converged
    assert (solution.residual > 1).all()
    assert solution.x.isfinite().all()


@pytest.mark.parametrize("slope", [-2.0, 1.0, 2.0])
def test_expanding_maps_do_not_converge_though_a_solution_exists(slope):
    y = tokens(1, 2, 3)
    with pytest.warns(NotConvergedWarning):
        solution = solve(lambda x: slope * x, y, max_iterations=50)
    assert not solution.converged
    assert solution.iterations == 50


def test_overflow_stops_at_once():
    branch = Counted(lambda x: -3 * x.abs() ** 3)
    with pytest.warns(NotConvergedWarning):
        solution = solve(branch, 10 + tokens(1, 2, 3).abs())
    assert len(branch.shapes) == solution.iterations < 12
    assert solution.residual.item() == math.inf
    assert solution.x.isfinite().all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_input_that_is_not_finite_spoils_no_other(method, bad):
    layer, y = contractive(), tokens(3, 6, 4)
    expected = quietly(layer, y, method=method)
    y[1, 2, 3] = bad
    with pytest.warns(NotConvergedWarning, match="1 of 3 inputs"):
        solution = solve(layer, y, method=method)
    assert solution.residual[1] == math.inf
    assert solution.residual[[0, 2]].max() <= 1e-14
    torch.testing.assert_close(solution.x[[0, 2]], expected.x[[0, 2]], rtol=0, atol=1e-14)
    assert solution.iterations <= expected.iterations


def test_slow_elements_neither_spoil_nor_delay_the_others():
    # The slope of the sine is 1 at 0 and 0 at pi / 2.
    def sine(x: Tensor) -> Tensor:
        return 0.97 * x.sin()

    fast = torch.full((1, 2, 3), math.pi / 2 + 0.97, dtype=torch.float64) + 1e-3 * tokens(1, 2, 3)
    slow = 1e-2 * tokens(1, 2, 3)
    branch = Counted(sine)
    both, alone = quietly(branch, torch.cat([slow, fast])), quietly(sine, fast)
    assert torch.equal(both.x[1:], alone.x)
    assert torch.equal(both.residual[1:], alone.residual)
    assert alone.iterations < 20 < 500 < both.iterations
    assert [batch for batch, _, _ in branch.shapes].count(2) == alone.iterations


def test_rounding_of_the_branch_ends_the_iteration_undecided():
    def noisy(x: Tensor) -> Tensor:
        return 0.5 * x + 1e-11 * (1e14 * x).sin()

    y = tokens(2, 3, 4)
    with pytest.warns(NotConvergedWarning):
        solution = solve(noisy, y)
    assert solution.iterations < 300
    assert 256 * EPS < solution.residual.max() < 1e-10
    assert quietly(noisy, y, tolerance=1e-9).converged


def test_slowest_contraction_is_solved_to_its_last_bits():
    # Rounding keeps steps above 8 eps here: with c = 0.97 they settle near 2 ulp / (1 - c).
    y = 1e-2 * tokens(8, 2, 3)
    solution = quietly(lambda x: 0.97 * x.sin(), y)
    assert solution.converged
    assert (solution.residual / y.abs().amax((1, 2))).max() > 8 * EPS
    with pytest.warns(NotConvergedWarning):
        assert not solve(lambda x: 0.97 * x.sin(), y, tolerance=8 * EPS).converged


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_residual_is_that_of_the_result(limit):
    layer, y = contractive(), tokens(2, 6, 4)
    with pytest.warns(NotConvergedWarning):
        solution = solve(layer, y, max_iterations=limit)
    with torch.no_grad():
        residual = (solution.x + layer(solution.x) - y).abs().amax((1, 2))
    torch.testing.assert_close(solution.residual, residual, rtol=1e-10, atol=8 * EPS)
    assert solution.iterations == limit


def test_tolerance_is_kept_and_saves_iterations():
    layer, y = contractive(), 100 * tokens(2, 6, 4)
    loose, tight = quietly(layer, y, tolerance=1e-4), quietly(layer, y)
    scale = torch.maximum(loose.x.abs().amax((1, 2)), y.abs().amax((1, 2)))
    assert (loose.residual <= 1e-4 * scale).all()
    assert loose.iterations < tight.iterations


def test_warm_start():
    layer, y = contractive(), tokens(2, 6, 4)
    solution = quietly(layer, y)
    again = quietly(layer, y, start=solution.x)
    assert again.iterations == 1
    assert torch.equal(again.x, solution.x)
    far = quietly(layer, y, start=1e3 * tokens(2, 6, 4, seed=5))
    torch.testing.assert_close(far.x, solution.x, rtol=0, atol=1e-13)


def test_error_bound_is_attained_and_needs_its_factor():
    # One direction, f = -c x: the error is the residual over 1 - c.
    y, c = torch.ones(1, 1, 1, dtype=torch.float64), 0.9
    solution = quietly(lambda x: -c * x, y, tolerance=1e-3)
    error = (solution.x - 1 / (1 - c)).abs().item()
    assert error == pytest.approx(solution.error_bound(c, math.inf).item(), rel=1e-9)
    # f contracts in the 2-norm by 1/2 but gathers a residual of ones in one entry.
    width = 16
    matrix = torch.zeros(width, width, dtype=torch.float64)
    matrix[:, 0] = -0.5 / math.sqrt(width)
    error = torch.linalg.solve((torch.eye(width).double() + matrix).T, torch.ones(width, dtype=torch.float64)).abs()
    exact = Solution(torch.zeros(1, 1, width), 1, torch.ones(1), False)
    assert exact.error_bound(0.5, math.inf).item() < error.max() <= exact.error_bound(0.5, "mixed").item()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (1, 1, 4), (3, 1, 4)])
def test_few_tokens_and_few_elements(shape, method):
    layer, y = contractive(), tokens(*shape)
    solution = quietly(layer, y, method=method)
    assert solution.converged
    assert solution.x.shape == shape
    assert solution.residual.shape == shape[:1]
    assert bool((solution.x + layer(solution.x) - y).abs().le(1e-14).all())


def test_zero_is_solved():
    assert quietly(contractive(), torch.zeros(1, 3, 4).double()).iterations == 1


@pytest.mark.parametrize("fused", [True, False])
def test_no_gradient_and_inference_mode(fused):
    layer, y = contractive(fused=fused), tokens(2, 6, 4).requires_grad_()
    solution = quietly(layer, y)
    assert not solution.x.requires_grad
    with torch.inference_mode():
        assert torch.equal(quietly(layer, y).x, solution.x)
        made_here = y + 0
    assert torch.equal(quietly(layer, made_here).x, solution.x)
    assert torch.equal(y, tokens(2, 6, 4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": torch.zeros(3, 4)}, "shape"),
        ({"y": torch.zeros(1, 3, 4, dtype=torch.bfloat16)}, "float32 or float64"),
        ({"y": torch.zeros(1, 3, 4, dtype=torch.float16)}, "float32 or float64"),
        ({"y": torch.zeros(1, 3, 4, dtype=torch.long)}, "float32 or float64"),
        ({"start": torch.zeros(1, 2, 4)}, "start"),
        ({"method": "backwards"}, "method"),
        ({"tolerance": -1e-3}, "tolerance"),
        ({"tolerance": math.nan}, "tolerance"),
        ({"max_iterations": 0}, "max_iterations"),
    ],
)
def test_errors(change, message):
    with pytest.raises(ValueError, match=message):
        solve(**{"f": torch.zeros_like, "y": torch.zeros(1, 3, 4), **change})


@pytest.mark.parametrize("contraction", [-0.1, 1.0, math.nan])
def test_error_bound_wants_a_contraction(contraction):
    with pytest.raises(ValueError, match="contraction"):
        quietly(torch.zeros_like, tokens(1, 2, 3)).error_bound(contraction, 2)
