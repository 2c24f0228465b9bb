"""Log-determinants of residuals against determinants of Jacobians built by other means."""

import math
from typing import get_args

import pytest
import torch
from jacobians import jacobian
from torch import Tensor, nn

from lipformer.functional.spectral import Norm
from lipformer.modules.attention import ContractiveL2Attention, DotProductAttention
from lipformer.modules.log_det import METHODS, log_det

NORMS: tuple[Norm, ...] = (2, math.inf, "mixed")


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def contractive(p: Norm = "mixed", **keywords) -> ContractiveL2Attention:
    torch.manual_seed(0)
    return ContractiveL2Attention(4, 2, context=6, p=p, **keywords).double()


class Branch(nn.Module):
    """Contractive in the mixed norm by 0.8, with large eigenvalues: attention beside a token-wise map."""

    def __init__(self, causal: bool = True):
        super().__init__()
        self.attention = contractive(scale=0.3, causal=causal)
        self.linear = nn.Linear(4, 4).double()
        with torch.no_grad():
            self.linear.weight.copy_(-0.5 * torch.linalg.qr(tokens(4, 4)).Q)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x) + self.linear(x).sin()


def explicitly(branch: Branch):
    """The same on the explicit path, without the context that is under test."""
    return lambda x: branch.attention(x, fused=False) + branch.linear(x).sin()


def finite_differences(f, x: Tensor, step: float = 1e-5) -> Tensor:
    """I + J of one element of the batch by central differences."""
    columns = []
    for unit in torch.eye(x[0].numel(), dtype=x.dtype).view(-1, 1, *x.shape[1:]):
        columns.append((f(x + step * unit) - f(x - step * unit)).flatten() / (2 * step))
    return torch.eye(x[0].numel(), dtype=x.dtype) + torch.stack(columns, 1)


def eigenvalue_heavy(radius: float, width: int = 3) -> Tensor:
    """Spectral radius `radius`, but no usual norm below one."""
    upper = tokens(width, width, seed=3).triu(1) * 3
    return upper + radius * torch.diag(torch.linspace(-1, 0.7, width, dtype=torch.float64))


@pytest.mark.parametrize("causal", [True, False])
def test_exact_is_the_determinant_of_the_jacobian(causal):
    branch, x = Branch(causal), tokens(3, 5, 4, seed=1)
    jac = jacobian(explicitly(branch), x).reshape(3, 20, 20)
    expected = torch.linalg.slogdet(torch.eye(20).double() + jac).logabsdet
    torch.testing.assert_close(log_det(branch, x), expected, rtol=0, atol=1e-13)
    assert expected.abs().min() > 0.1


def test_exact_withstands_finite_differences():
    branch, x = Branch(), tokens(2, 5, 4, seed=1)
    with torch.no_grad():
        expected = [torch.linalg.slogdet(finite_differences(branch, one[None])).logabsdet for one in x]
    torch.testing.assert_close(log_det(branch, x), torch.stack(expected), rtol=0, atol=1e-8)


@pytest.mark.parametrize("method", ["exact", "power_series"])
@pytest.mark.parametrize(
    "layer", [*(contractive(p) for p in NORMS), Branch(), DotProductAttention(4, 2, context=6).double()]
)
def test_causal_blocks_give_the_whole_determinant(layer, method):
    x = tokens(2, 6, 4)
    whole = log_det(layer, x, method=method)
    torch.testing.assert_close(log_det(layer, x, method=method, causal=True), whole, rtol=1e-12, atol=1e-13)
    assert whole.abs().min() > 0


def test_a_false_promise_of_causality_is_refused():
    with pytest.raises(ValueError, match="token 0 depends on a later one"):
        log_det(Branch(causal=False), tokens(2, 5, 4), causal=True)


@pytest.mark.parametrize("causal", [True, False])
def test_linear_map_with_known_determinant(causal):
    matrix = 3 * tokens(4, 4, seed=2)  # not contractive, and of negative determinant too: "exact" is for any f
    expected = 5 * torch.linalg.slogdet(torch.eye(4).double() + matrix).logabsdet
    values = log_det(lambda x: x @ matrix, tokens(2, 5, 4), causal=causal)
    torch.testing.assert_close(values, expected.expand(2), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("terms", [1, 2, 3, 5, 9, 17])
def test_truncated_series_errs_by_no_more_than_its_bound(terms):
    branch, x = Branch(), tokens(3, 5, 4)
    c = 0.3 + 0.5
    bound = x[0].numel() * c ** (terms + 1) / ((terms + 1) * (1 - c))
    error = (log_det(branch, x, method="power_series", terms=terms) - log_det(branch, x)).abs()
    assert (error <= bound).all()
    # f = -c x has all eigenvalues at -c, so that no term cancels: the bound is nearly attained.
    error = log_det(lambda x: -c * x, x, method="power_series", terms=terms) - log_det(lambda x: -c * x, x)
    assert (error <= bound).all()
    assert (error >= bound * 0.5).all() or terms < 3
    assert (error >= bound * (1 - c)).all()


def test_series_needs_the_spectral_radius_only():
    matrix, x = eigenvalue_heavy(0.6), tokens(1, 2, 3)
    for norm in (2, math.inf, 1, "fro"):
        assert torch.linalg.matrix_norm(matrix, norm) > 1
    series = log_det(lambda x: x @ matrix, x, method="power_series", terms=100)
    torch.testing.assert_close(series, log_det(lambda x: x @ matrix, x), rtol=0, atol=1e-12)
    beyond = log_det(lambda x: 2 * x @ matrix, x, method="power_series", terms=100)
    assert (beyond - log_det(lambda x: 2 * x @ matrix, x)).abs().item() > 1e3


def test_volume_change_of_a_contraction_is_bounded():
    c, x = 0.8, tokens(2, 5, 4)
    assert (log_det(Branch(), x).abs() <= -x[0].numel() * math.log(1 - c)).all()


def test_signs_see_a_diagonal_jacobian_exactly():
    def diagonal(x: Tensor) -> Tensor:
        return -0.8 * x.sin()

    x = tokens(3, 4, 2)
    series = log_det(diagonal, x, method="power_series", terms=7)
    torch.testing.assert_close(log_det(diagonal, x, method="hutchinson", terms=7), series, rtol=0, atol=1e-13)


def standard_errors(draws: Tensor, expected: Tensor) -> float:
    """Distance of the mean of independent draws from what it should be, in standard errors."""
    return ((draws.mean() - expected).abs() / (draws.std() / math.sqrt(len(draws)))).item()


def draws(f, x: Tensor, count: int = 20_000, **keywords) -> Tensor:
    """Independent estimates: elements of a batch draw for themselves."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        return log_det(f, x.expand(count, -1, -1), generator=generator, **keywords)


@pytest.mark.parametrize("kind", ["branch", "nonnormal"])
def test_roulette_is_unbiased_where_truncation_is_not(kind):
    x = tokens(1, 2, 4)
    matrix = torch.block_diag(eigenvalue_heavy(0.3) / 4, -torch.full((1, 1), 0.6).double())
    f = Branch() if kind == "branch" else lambda x: x @ matrix
    exact = log_det(f, x).detach()
    roulette = draws(f, x, method="russian_roulette", terms=1)
    assert standard_errors(roulette, exact) < 4
    # Power of the test: what the roulette would estimate if it always stopped at the first term fails it.
    truncated = draws(f, x, method="hutchinson", terms=1)
    assert standard_errors(truncated, exact) > 6
    assert standard_errors(truncated, log_det(f, x, method="power_series", terms=1).detach()) < 4


@pytest.mark.parametrize("continuation", [0.5, 0.8])  # above slope^(4/3), where the variance can be estimated
@pytest.mark.parametrize("terms", [1, 3])
def test_roulette_is_unbiased_whatever_its_lengths(continuation, terms):
    # One dimension: v J^k v = J^k, so that only the cut is random.
    x, slope = tokens(1, 1, 1), -0.5
    estimates = draws(
        lambda x: slope * x, x, method="russian_roulette", terms=terms, continuation=continuation, count=40_000
    )
    assert standard_errors(estimates, torch.tensor(math.log1p(slope))) < 4
    # E of the square: the value after m extra terms has probability q^m (1 - q).
    value = sum((-1) ** (k + 1) * slope**k / k for k in range(1, terms + 1))
    second, total = 0.0, value
    for extra in range(200):
        k = terms + extra
        total += (-1) ** (k + 1) * slope**k / k / continuation**extra if extra else 0.0
        second += continuation**extra * (1 - continuation) * total**2
    variance = second - math.log1p(slope) ** 2
    assert standard_errors((estimates - math.log1p(slope)).square(), torch.tensor(variance)) < 4
    assert variance > 0


def test_variance_of_the_first_term_is_hutchinsons():
    matrix, x = tokens(3, 3, seed=4), tokens(1, 1, 3)
    symmetric = (matrix + matrix.mT) / 2
    variance = 2 * (symmetric.square().sum() - symmetric.diagonal().square().sum())
    estimates = draws(lambda x: x @ matrix, x, method="hutchinson", terms=1)
    assert standard_errors((estimates - matrix.trace()).square(), variance) < 4


@pytest.mark.parametrize("method", ["hutchinson", "russian_roulette"])
def test_samples_are_averaged(method):
    branch, x = Branch(), tokens(1, 2, 4)
    single = draws(branch, x, method=method, count=4000)
    many = draws(branch, x, method=method, count=500, samples=16)
    assert many.var().item() == pytest.approx(single.var().item() / 16, rel=0.3)


def test_estimates_depend_on_their_generator_alone():
    branch, x = Branch(), tokens(2, 3, 4)
    state = torch.get_rng_state()
    first, second, other = (
        log_det(branch, x, method="russian_roulette", generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("causal", [True, False])
def test_gradient_of_the_exact_value(causal):
    branch, x = Branch(), tokens(2, 3, 4).requires_grad_()
    weights = [branch.attention.query.weight, branch.attention.out.weight, branch.linear.weight, x]
    gradients = torch.autograd.grad(log_det(branch, x, causal=causal).sum(), weights)
    for weight, gradient in zip(weights, gradients, strict=True):
        direction = tokens(*weight.shape, seed=7)
        values = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                weight.add_(step * direction)
                values.append(log_det(branch, x).sum())
                weight.sub_(step * direction)
        numerical = (values[0] - values[1]) / 2e-5
        torch.testing.assert_close((gradient * direction).sum(), numerical, rtol=1e-6, atol=1e-9)
        assert numerical.abs() > 1e-4


def test_gradient_of_the_series_is_that_of_the_exact_value():
    branch, x = Branch(), tokens(2, 3, 4)
    weights = list(branch.parameters())
    exact, series = (
        torch.autograd.grad(log_det(branch, x, method=method, terms=120).sum(), weights, allow_unused=True)
        for method in ("exact", "power_series")
    )
    for one, other in zip(exact, series, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_gradient_of_the_roulette_is_unbiased():
    branch, x = Branch(), tokens(1, 2, 4)
    weight = branch.linear.weight
    (exact,) = torch.autograd.grad(log_det(branch, x).sum(), weight)
    direction = exact / exact.norm()  # one number to test
    generator = torch.Generator().manual_seed(0)
    keywords = {"samples": 40, "terms": 1, "generator": generator}

    def slopes(method: str) -> Tensor:
        rows = []
        for _ in range(30):
            estimate = log_det(branch, x, method=method, **keywords).sum()
            rows.append((torch.autograd.grad(estimate, weight)[0] * direction).sum())
        return torch.stack(rows)

    expected = (exact * direction).sum()
    assert standard_errors(slopes("russian_roulette"), expected) < 4
    assert standard_errors(slopes("hutchinson"), expected) > 6


@pytest.mark.parametrize("method", METHODS)
def test_modes_without_gradient(method):
    branch, x = Branch(), tokens(2, 3, 4)

    def value(at: Tensor = x) -> Tensor:
        return log_det(branch, at, method=method, generator=torch.Generator().manual_seed(0))

    expected = value()
    assert expected.requires_grad
    with torch.no_grad():
        assert torch.equal(value(), expected)
        assert not value().requires_grad
    with torch.inference_mode():
        assert torch.equal(value(), expected)
        assert torch.equal(value(x + 0), expected)
    assert branch.attention.fused


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (1, 1, 4), (3, 1, 4)])
def test_few_tokens_and_few_elements(shape, method):
    value = log_det(Branch(), tokens(*shape), method=method)
    assert value.shape == shape[:1]
    assert value.isfinite().all()
    assert (value != 0).all() or shape[1] == 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("causal", [True, False])
def test_elements_of_a_batch_are_independent(method, causal):
    branch, x = Branch(), tokens(3, 3, 4)

    def value(at: Tensor) -> Tensor:
        return log_det(branch, at, method=method, causal=causal, generator=torch.Generator().manual_seed(0))

    expected = value(x)
    spoilt = x.clone()
    spoilt[1, 1, 2] = math.nan
    got = value(spoilt)
    assert got[1].isnan()
    torch.testing.assert_close(got[[0, 2]], expected[[0, 2]], rtol=0, atol=1e-13)


def test_float32():
    branch, x = Branch(), tokens(2, 3, 4)
    expected = log_det(branch, x)
    for method in ("exact", "power_series"):
        value = log_det(branch.float(), x.float(), method=method, terms=60)
        assert value.dtype == torch.float32
        torch.testing.assert_close(value.double(), expected.double(), rtol=0, atol=1e-5)


def test_methods_of_the_signature_are_the_methods():
    assert get_args(log_det.__annotations__["method"]) == METHODS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(3, 4)}, "shape"),
        ({"x": torch.zeros(1, 3, 4, dtype=torch.bfloat16)}, "float32 or float64"),
        ({"x": torch.zeros(1, 3, 4, dtype=torch.long)}, "float32 or float64"),
        ({"method": "cholesky"}, "method"),
        ({"terms": 0}, "at least 1"),
        ({"samples": 0}, "at least 1"),
        ({"continuation": 1.0}, "continuation"),
        ({"continuation": math.nan}, "continuation"),
    ],
)
def test_errors(change, message):
    with pytest.raises(ValueError, match=message):
        log_det(**{"f": torch.zeros_like, "x": torch.zeros(1, 3, 4), **change})
