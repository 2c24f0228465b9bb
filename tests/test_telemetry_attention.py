"""Statistics of attention against loops over rows in float64, at known extremes, and what measuring leaves alone."""

import math

import pytest
import torch
from laws import KINDS
from torch import nn

from lipformer.modules.attention import (
    ContractiveL2DecoupledAttention,
    DotProductAttention,
    KernelAttention,
    SigmoidAttention,
)
from lipformer.modules.attention.scored import ScoredAttention, SoftmaxAttention
from lipformer.telemetry.attention import attention_statistics

F64 = torch.float64
WIDTH = 4
ROWS = {"entropy", "entropy_min", "entropy_share", "entropy_share_lowest_head", "weights_frobenius", "largest_weight"}
JACOBIAN = {"softmax_jacobian_norm", "softmax_jacobian_norm_max"}
ATTENTIONS = {
    f"{kind.name}-{'causal' if causal else 'all'}": (kind, causal)
    for kind in KINDS
    for causal in (True, False)
    if isinstance(layer := kind.build(WIDTH, causal=causal), ScoredAttention | KernelAttention)
    and layer.causal == causal
}


@pytest.fixture(params=ATTENTIONS)
def layer(request):
    """Every attention of the table of laws, causal and not, with weights drawn at random."""
    torch.manual_seed(0)
    kind, causal = ATTENTIONS[request.param]
    layer = kind.build(WIDTH, context=8, causal=causal)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return layer


class Given(nn.Module):
    """A layer of one's own that attends as it is told."""

    def __init__(self, weights, causal=True):
        super().__init__()
        self.weights, self.causal = weights, causal

    def attention_weights(self, x):
        return self.weights


class GivenScores(SoftmaxAttention):
    """A softmax of the scores that it is told."""

    def __init__(self, scores, causal):
        super().__init__()
        self.scores, self.causal = scores, causal

    def attention_scores(self, x):
        return self.scores


def mean(numbers):
    return sum(numbers) / len(numbers) if numbers else math.nan


def by_rows(weights, causal):
    """The quantities of weights alone, number by number."""
    entropies, shares, heads, largest, frobenius = [], [], [], [], []
    for h in range(weights.shape[1]):
        of_head = []
        for sentence in weights[:, h].tolist():
            frobenius.append(math.sqrt(sum(p * p for row in sentence for p in row)))
            for i, row in enumerate(sentence):
                seen = row[: i + 1] if causal else row
                total = sum(seen)
                if len(seen) > 1:
                    largest.append(max(seen))
                if total == 0:
                    continue
                entropy = -sum(p / total * math.log(p / total) for p in seen if p > 0)
                entropies.append((entropy, len(seen)))
                if len(seen) > 1:
                    of_head.append(entropy / math.log(len(seen)))
        shares += of_head
        heads += [mean(of_head)] if of_head else []
    return {
        "entropy": mean([entropy for entropy, _ in entropies]),
        "entropy_min": min((entropy for entropy, seen in entropies if seen > 1), default=math.nan),
        "entropy_share": mean(shares),
        "entropy_share_lowest_head": min(heads, default=math.nan),
        "weights_frobenius": mean(frobenius),
        "largest_weight": mean(largest),
    }


def rows_seen(matrices, causal):
    """The entries of each row that its token sees, where these are two or more."""
    for matrix in matrices.flatten(0, -3):
        for i, row in enumerate(matrix):
            seen = row[: i + 1] if causal else row
            if len(seen) > 1:
                yield seen


def by_scores(weights, causal, softmax):
    """The variance of the scores, found again from the weights up to a constant of each row."""
    log_weights = [p.log() if softmax else (p / (1 - p)).log() for p in rows_seen(weights, causal)]
    return {"logit_variance": mean([mean(((row - row.mean()) ** 2).tolist()) for row in log_weights])}


def by_eigenvalues(weights, causal):
    norms = [torch.linalg.eigvalsh(p.diag() - p.outer(p))[-1].item() for p in rows_seen(weights, causal)]
    return {"softmax_jacobian_norm": mean(norms), "softmax_jacobian_norm_max": max(norms, default=math.nan)}


def check(statistics, expected, rtol=1e-9, atol=1e-12):
    assert statistics.keys() == expected.keys()
    for name, value in statistics.items():
        assert value.shape == ()
        wanted = torch.tensor(expected[name], dtype=F64)
        torch.testing.assert_close(value.double(), wanted, rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_every_quantity_is_its_definition(layer, tokens):
    x = torch.randn(3, tokens, WIDTH, dtype=F64)
    weights = layer.attention_weights(x).detach()
    expected = by_rows(weights, layer.causal)
    if isinstance(layer, ScoredAttention):
        expected |= by_scores(weights, layer.causal, isinstance(layer, SoftmaxAttention))
    if isinstance(layer, SoftmaxAttention):
        expected |= by_eigenvalues(weights, layer.causal)
    check(attention_statistics(layer, x), expected)


def test_weights_are_made_of_scores_by_mask_and_softmax(layer):
    if isinstance(layer, KernelAttention):
        assert not hasattr(layer, "attention_scores")
        return
    x = torch.randn(2, 5, WIDTH, dtype=F64)
    scores, weights = layer.attention_scores(x), layer.attention_weights(x)
    assert scores.shape == weights.shape == (2, layer.heads, 5, 5)
    assert scores.isfinite().all()
    for i in range(5):
        seen = i + 1 if layer.causal else 5
        exponentials = scores[..., i, :seen].exp()
        if isinstance(layer, SigmoidAttention):
            row = exponentials / (1 + exponentials)
        else:
            row = exponentials / exponentials.sum(-1, keepdim=True)
        torch.testing.assert_close(weights[..., i, :seen], row)
        assert (weights[..., i, seen:] == 0).all()


def test_the_table_has_kinds_of_all_three_sorts():
    found = {type(kind.build(WIDTH)) for kind, _ in ATTENTIONS.values()}
    assert {DotProductAttention, ContractiveL2DecoupledAttention, SigmoidAttention, KernelAttention} <= found
    assert {causal for _, causal in ATTENTIONS.values()} == {True, False}


@pytest.mark.parametrize("causal", [True, False])
def test_even_rows(causal):
    statistics = attention_statistics(GivenScores(torch.full((2, 3, 5, 5), 7.0, dtype=F64), causal), torch.zeros(0))
    seen = [1, 2, 3, 4, 5] if causal else [5] * 5
    choosing = [n for n in seen if n > 1]
    check(
        statistics,
        {
            "entropy": mean([math.log(n) for n in seen]),
            "entropy_min": math.log(min(choosing)),
            "entropy_share": 1.0,
            "entropy_share_lowest_head": 1.0,
            "weights_frobenius": math.sqrt(sum(1 / n for n in seen)),
            "largest_weight": mean([1 / n for n in choosing]),
            "logit_variance": 0.0,
            "softmax_jacobian_norm": mean([1 / n for n in choosing]),
            "softmax_jacobian_norm_max": 1 / min(choosing),
        },
    )


@pytest.mark.parametrize("causal", [True, False])
def test_one_hot_rows(causal):
    scores = 1e4 * torch.eye(5).expand(2, 3, 5, 5)
    statistics = attention_statistics(GivenScores(scores, causal), torch.zeros(0))
    assert statistics.pop("logit_variance") > 1e7
    expected = dict.fromkeys((ROWS | JACOBIAN) - {"weights_frobenius", "largest_weight"}, 0.0)
    check(statistics, expected | {"weights_frobenius": math.sqrt(5), "largest_weight": 1.0}, atol=0.0, rtol=1e-6)


@pytest.mark.parametrize(("factor", "lowest", "highest"), [(0, 1 - 1e-6, 1 + 1e-6), (1, 0.5, 0.999), (50, 0, 0.05)])
def test_collapse_shows(factor, lowest, highest):
    torch.manual_seed(0)
    layer = DotProductAttention(16, 4, context=20)
    with torch.no_grad():
        layer.query.weight.mul_(factor)
        layer.key.weight.mul_(factor)
    assert lowest <= attention_statistics(layer, torch.randn(8, 20, 16))["entropy_share"] <= highest


def test_one_head_collapses():
    weights = torch.full((2, 4, 3, 3), 0.5).tril()
    weights[:, 2] = torch.eye(3)
    statistics = attention_statistics(Given(weights), torch.zeros(0))
    assert statistics["entropy_share"] == 0.75
    assert statistics["entropy_share_lowest_head"] == 0
    assert statistics["entropy_min"] == 0


def test_rows_that_do_not_sum_to_one_and_rows_of_zeros():
    weights = torch.tensor([[[3.0, 0, 0], [0, 0, 0], [5, 0, 5]]], dtype=F64).repeat(2, 2, 1, 1)
    weights[:, 1] = 0
    statistics = attention_statistics(Given(weights), torch.zeros(0))
    check(statistics, by_rows(weights, causal=True))
    assert statistics["entropy_share"].item() == pytest.approx(math.log(2) / math.log(3))
    assert statistics["entropy_share_lowest_head"] == statistics["entropy_share"]
    assert statistics["largest_weight"] == 1.25
    dead = attention_statistics(Given(torch.zeros(1, 1, 3, 3)), torch.zeros(0))
    assert all(dead.pop(name).isnan() for name in sorted(ROWS) if name.startswith("entropy"))
    assert dead == {"weights_frobenius": 0, "largest_weight": 0}


def test_a_dead_query_of_relu_features_is_left_out():
    torch.manual_seed(0)
    layer, x = KernelAttention(4, 2, context=6, features="relu").double(), torch.rand(1, 6, 4, dtype=F64)
    with torch.no_grad():
        layer.query.weight.copy_(torch.eye(4))
        layer.key.weight.abs_()
    x[:, 3] *= -1
    statistics = attention_statistics(layer, x)
    assert all(value.isfinite() for value in statistics.values())
    check(statistics, by_rows(layer.attention_weights(x), causal=True))


def test_nan_is_not_hidden(layer):
    x = torch.randn(3, 4, WIDTH, dtype=F64)
    x[1, 2] = math.nan
    statistics = attention_statistics(layer, x)
    assert len(statistics) >= len(ROWS)
    assert all(value.isnan() for value in statistics.values())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_precision_of_the_layer_but_at_least_float32(layer, dtype, tolerance):
    x = torch.randn(3, 6, WIDTH).to(dtype)
    statistics = attention_statistics(layer.to(dtype), x)
    assert {value.dtype for value in statistics.values()} == {torch.float32}
    exact = attention_statistics(layer.double(), x.double())
    check(statistics, {name: value.item() for name, value in exact.items()}, rtol=tolerance, atol=tolerance)


def test_half_precision_scores_are_summed_in_float32():
    scores = (100 + torch.randn(1, 1, 40, 40, generator=torch.Generator().manual_seed(0))).bfloat16()
    statistics = attention_statistics(GivenScores(scores, causal=False), torch.zeros(0))
    expected = scores.double().var(-1, correction=0).mean().item()
    assert statistics["logit_variance"].item() == pytest.approx(expected, rel=1e-5)


def test_measuring_changes_nothing(layer):
    layer.train()
    layer.dropout.p, layer.dropout.training = 0.5, False
    modes = [module.training for module in layer.modules()]
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    x = torch.randn(2, 5, WIDTH, dtype=F64, requires_grad=True)
    state = torch.get_rng_state()
    statistics = attention_statistics(layer, x)
    assert not any(value.requires_grad for value in statistics.values())
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in layer.modules()] == modes
    assert len(set(modes)) == 2
    after = layer.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_dropout_is_not_seen():
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.dropout = nn.Dropout(0.5)

        def attention_weights(self, x):
            return self.dropout(torch.full((2, 1, 6, 6), 1 / 6))

    for layer in (Dropping(), DotProductAttention(WIDTH, 2, context=6, dropout=0.5)):
        x = torch.randn(2, 6, WIDTH)
        assert attention_statistics(layer.train(), x) == attention_statistics(layer.eval(), x)


@pytest.mark.parametrize("kind", [DotProductAttention, SigmoidAttention])
def test_nothing_waits_for_the_device(kind):
    """Tensors without numbers: whatever reads one raises."""
    layer = kind(WIDTH, 2, context=6).to("meta")
    statistics = attention_statistics(layer, torch.zeros(2, 5, WIDTH, device="meta"))
    assert statistics.keys() >= ROWS | {"logit_variance"}
    assert {value.device.type for value in statistics.values()} == {"meta"}


def test_scores_and_weights_are_computed_once(layer, monkeypatch):
    calls = []
    for name in ("attention_scores", "attention_weights"):
        if method := getattr(layer, name, None):
            monkeypatch.setattr(layer, name, lambda x, name=name, method=method: (calls.append(name), method(x))[1])
    attention_statistics(layer, torch.randn(2, 5, WIDTH, dtype=F64))
    assert calls == ["attention_weights" if isinstance(layer, KernelAttention) else "attention_scores"]


def test_a_layer_of_ones_own_has_what_it_can_have():
    weights = torch.rand(2, 2, 4, 4).tril()
    own = Given(weights)
    assert attention_statistics(own, torch.zeros(0)).keys() == ROWS
    del own.causal  # none: it is what the model asks for
    check(attention_statistics(own, torch.zeros(0)), by_rows(weights.double(), causal=True), rtol=1e-5)
    own.attention_scores = lambda x: torch.arange(4.0).expand(2, 2, 4, 4)
    statistics = attention_statistics(own, torch.zeros(0))
    assert statistics.keys() == ROWS | {"logit_variance"}
    assert statistics["logit_variance"].item() == pytest.approx(mean([1 / 4, 2 / 3, 5 / 4]))
    assert attention_statistics(nn.Linear(2, 2), torch.zeros(1, 2, 2)) == {}
