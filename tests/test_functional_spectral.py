"""Operator norms: from above, exact, and what happens at the edges of the number range."""

import math

import pytest
import torch

from lipformer.functional import spectral


def matrices(dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    orthogonal = torch.linalg.qr(torch.randn(64, 64, dtype=torch.float64))[0].to(dtype)
    return [
        torch.randn(64, 64, dtype=dtype),
        torch.randn(3, 64, 8, dtype=dtype),
        torch.randn(2, 2, 8, 64, dtype=dtype),
        torch.randn(64, 1, dtype=dtype) @ torch.randn(1, 64, dtype=dtype),
        orthogonal,
        torch.eye(64, dtype=dtype),
        torch.ones(1, 1, dtype=dtype),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e3, 1e30])
def test_upper_is_above_and_close(dtype, scale):
    for matrix in matrices(dtype):
        upper, exact = spectral.upper(scale * matrix), spectral.exact(scale * matrix)
        assert upper.shape == matrix.shape[:-2]
        assert upper.dtype == dtype
        assert (upper >= exact).all()
        # rank 64, six products: 64^(1/128) = 1.033, and 64 roundings of float32 beside a share of 1/64
        assert (upper <= 1.04 * exact).all()


def test_upper_is_tight_unless_all_singular_values_are_equal():
    torch.manual_seed(0)
    matrix = torch.randn(512, 512, dtype=torch.float64)
    assert 1 <= spectral.upper(matrix) / spectral.exact(matrix) < 1.03
    assert spectral.upper(torch.eye(512)).item() == pytest.approx(512 ** (1 / 128), rel=0.03)


def test_upper_covers_float32_rounding_at_width_512():
    for seed in range(5):
        torch.manual_seed(seed)
        matrix = torch.randn(512, 512)
        # Enough products that the slack of the iteration itself is gone and only roundings are left.
        assert spectral.upper(matrix, iterations=14) >= spectral.exact(matrix)


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_upper_makes_room_for_reduced_matmul_precision(precision):
    matrix = torch.randn(64, 64)
    before, full = torch.get_float32_matmul_precision(), spectral.upper(matrix)
    torch.set_float32_matmul_precision(precision)
    try:
        assert spectral.upper(matrix) > full
    finally:
        torch.set_float32_matmul_precision(before)


def test_upper_makes_room_where_the_precision_has_no_single_name(monkeypatch):
    """Set by torch.backends.*.fp32_precision, torch raises when asked for it."""
    matrix = torch.randn(64, 64)
    full = spectral.upper(matrix)

    def refuse():
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuse)
    assert spectral.upper(matrix) > full
    assert spectral.upper(matrix.double()) == pytest.approx(full.item(), rel=1e-2)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_matrix_that_is_not_finite_has_no_norm(value):
    matrix = torch.ones(3, 4, 2)
    matrix[1, 2, 0] = value
    assert spectral.exact(matrix).isnan().tolist() == [False, True, False]
    assert not spectral.upper(matrix)[1].isfinite()


def test_upper_of_zero_is_zero_with_a_finite_gradient():
    matrix = torch.zeros(2, 5, 3, requires_grad=True)
    upper = spectral.upper(matrix)
    upper.sum().backward()
    assert (upper == 0).all()
    assert (matrix.grad == 0).all()


def test_upper_of_half_precision_is_float32_also_under_autocast():
    matrix = torch.randn(32, 32, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        upper = spectral.upper(matrix)
    assert upper.dtype == torch.float32
    assert upper >= spectral.exact(matrix)


def test_upper_gradient():
    torch.manual_seed(0)
    matrix = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(spectral.upper, matrix)
    assert torch.autograd.gradgradcheck(spectral.upper, matrix)
    upper, exact = (torch.autograd.grad(f(matrix).sum(), matrix)[0] for f in (spectral.upper, spectral.exact))
    torch.testing.assert_close(upper, exact, rtol=0.05, atol=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("iterations", [0, 1, 20])
def test_lower_is_never_above(dtype, scale, iterations):
    generator = torch.Generator().manual_seed(0)
    for matrix in matrices(dtype):
        lower = spectral.lower(scale * matrix, iterations, generator)
        assert lower.shape == matrix.shape[:-2]
        assert lower.dtype == dtype
        assert (lower > 0).all()
        assert (lower <= spectral.exact(scale * matrix) * (1 + 64 * torch.finfo(dtype).eps)).all()


def test_lower_rises_to_the_norm_where_it_stands_out():
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(2, 40, 30, generator=generator, dtype=torch.float64)
    matrix += 3 * torch.ones(40, 30, dtype=torch.float64)
    few, many = (spectral.lower(matrix, k, torch.Generator().manual_seed(1)) for k in (1, 20))
    exact = spectral.exact(matrix)
    assert (few < many).all()
    torch.testing.assert_close(many, exact, rtol=1e-10, atol=0)
    matrix.requires_grad_()
    lower, exact = (
        torch.autograd.grad(f(matrix).sum(), matrix)[0] for f in (lambda a: spectral.lower(a, 40), spectral.exact)
    )
    torch.testing.assert_close(lower, exact, rtol=1e-6, atol=1e-8)


def test_lower_of_zero_is_zero_and_of_half_precision_float32():
    assert (spectral.lower(torch.zeros(2, 5, 3)) == 0).all()
    assert spectral.lower(torch.eye(4, dtype=torch.bfloat16)).dtype == torch.float32
    assert spectral.lower(torch.tensor([[math.nan, 1.0]])).isnan()


def test_inf_norm_is_the_row_sum():
    matrix = torch.tensor([[1.0, -2.0], [0.5, 0.25], [-1.0, 1.0]])
    assert spectral.inf_norm(matrix) == 3
    assert spectral.inf_norm(matrix.mT) == 3.25


@pytest.mark.parametrize(
    ("spelling", "norm"),
    [("mixed", "mixed"), (2, 2), (2.0, 2), ("2", 2), (math.inf, math.inf), ("inf", math.inf), (".inf", math.inf)],
)
def test_norm_names(spelling, norm):
    assert spectral.parse_norm(spelling) == norm


@pytest.mark.parametrize("spelling", [1, 0, -math.inf, "fro", None, True])
def test_unknown_norms_are_refused(spelling):
    with pytest.raises(ValueError, match=r"p must be 2, inf or 'mixed', not"):
        spectral.parse_norm(spelling)


def test_upper_is_one_graph_to_compile_and_another_in_another_precision():
    """Its room for rounding is the one of the precision it runs in."""
    matrix, graphs = 1e3 * torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), []

    def count(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(spectral.upper, backend=count, fullgraph=True)
    bounds = []
    try:
        for precision in ("highest", "medium"):
            torch.set_float32_matmul_precision(precision)
            bounds.append(compiled(matrix))
            assert torch.equal(bounds[-1], spectral.upper(matrix))
    finally:
        torch.set_float32_matmul_precision("highest")
    assert len(graphs) == 2
    assert bounds[0] < bounds[1]
