"""Penalties against direct computation, what minimises them, and runs that train with them."""

import csv
import functools
import math

import pytest
import torch
from jacobians import jacobian as full_jacobian
from jacobians import norm_2
from programs import train, write_text

from lipformer.assembly.checkpoint import load_run
from lipformer.data.collate import IGNORE, Batch
from lipformer.errors import UsageError
from lipformer.models.transformer import CharTransformer
from lipformer.modules.attention import DotProductAttention, SigmoidAttention, TiedL2Attention
from lipformer.modules.embedding import TokenEmbedding
from lipformer.modules.feedforward import FeedForward
from lipformer.modules.linear import dense
from lipformer.modules.normalisations import LayerNorm
from lipformer.modules.position import LearnedPosition
from lipformer.modules.residual import PreNorm
from lipformer.options.optimisation import JacobianOptions, JasminOptions
from lipformer.training.determinism import flags_restored
from lipformer.training.regularizers import jacobian, jasmin, jasmin_penalty, no_regularizer

F64 = torch.float64


def model_of(attention=DotProductAttention, depth=2):
    torch.manual_seed(0)
    parts = {
        "norm": LayerNorm,
        "residual": PreNorm,
        "feedforward": functools.partial(FeedForward, activation="gelu", expansion=2),
        "position": LearnedPosition,
        "embedding": TokenEmbedding,
        "linear": dense,
    }
    return CharTransformer(7, width=8, heads=2, depth=depth, context=6, attention=attention, **parts).double()


def batch_of(lengths=(6, 4)):
    longest = max(lengths)
    inputs = torch.randint(7, (len(lengths), longest), generator=torch.Generator().manual_seed(1))
    targets = inputs.roll(-1, dims=1)
    for row, length in enumerate(lengths):
        inputs[row, length:], targets[row, length:] = 0, IGNORE
    return Batch(inputs, targets, torch.tensor(lengths))


def by_hand(rows, k):
    """The penalty of one head: rows of different lengths, worst first."""

    def g(row, place):
        x = [*sorted(row.tolist(), reverse=True), 0.0]
        return x[place - 1] * (1 - x[place - 1] + x[place])

    values = [math.log(g(row, 1)) - (math.log(g(row, k)) if k else 0) for row in rows if len(row) > max(k, 1)]
    return max(values, default=0.0)


@pytest.mark.parametrize("k", [0, 2, 3, 5, 9])
@pytest.mark.parametrize("kind", [DotProductAttention, TiedL2Attention])
def test_jasmin_is_what_it_says(kind, k):
    model, batch = model_of(kind), batch_of()
    logits, penalty = jasmin(model, batch, weight=0.5, k=k)
    torch.testing.assert_close(logits, model(batch.inputs))
    x, values = model.embed(batch.inputs), []
    for block in model.blocks:
        weights = block.attention.branch.attention_weights(block.attention.norm(x)).detach()
        values += [
            by_hand([weights[b, h, i, : i + 1] for i in range(length)], k)
            for b, length in enumerate(batch.lengths.tolist())
            for h in range(2)
        ]
        x = block(x)
    assert penalty.item() == pytest.approx(0.5 * sum(values) / len(values), rel=1e-9, abs=1e-12)
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("k", [0, 3])
def test_the_minima_of_jasmin(k):
    """k = 0: uniform rows and one-hot ones below a tie of two; k >= 2: equal largest entries alone."""
    n = 8
    uniform, one_hot, tie = torch.full((n,), 1 / n, dtype=F64), torch.zeros(n, dtype=F64), torch.zeros(n, dtype=F64)
    one_hot[0], tie[:2] = 1, 0.5
    value = {
        name: jasmin_penalty(row.expand(1, 1, n, n), k, torch.ones(1, n, dtype=torch.bool), causal=False).item()
        for name, row in {"uniform": uniform, "one_hot": one_hot, "tie": tie}.items()
    }
    if k == 0:
        assert value["uniform"] == pytest.approx(math.log(1 / n))
        assert value["tie"] == pytest.approx(math.log(1 / 2))
        assert value["one_hot"] < value["uniform"] < value["tie"]
    else:
        assert value["uniform"] == pytest.approx(0, abs=1e-12)
        assert min(value["one_hot"], value["tie"]) >= 0
        assert value["tie"] > 5


def test_jasmin_of_too_short_sentences_is_zero_and_differentiable():
    model, batch = model_of(), batch_of((1, 1))
    for k in (0, 3):
        _, penalty = jasmin(model, batch, weight=1.0, k=k)
        assert penalty.item() == 0
        gradients = torch.autograd.grad(penalty, list(model.parameters()), allow_unused=True)
        assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)


def test_jasmin_wants_a_softmax():
    with pytest.raises(UsageError, match="SigmoidAttention"):
        jasmin(model_of(SigmoidAttention), batch_of(), weight=1.0, k=0)


@pytest.mark.parametrize("kind", [DotProductAttention, TiedL2Attention])
def test_jacobian_is_the_mean_squared_norm_of_each_sentence_alone(kind):
    model, batch = model_of(kind), batch_of()
    torch.manual_seed(3)
    logits, penalty = jacobian(model, batch, weight=0.5, iterations=150)
    torch.testing.assert_close(logits, model(batch.inputs))
    assert all(block.attention.branch.fused for block in model.blocks)
    for block in model.blocks:
        block.attention.branch.fused = False
    squares = [
        norm_2(full_jacobian(model.trunk, model.embed(batch.inputs[b : b + 1, :length]))).item() ** 2
        for b, length in enumerate(batch.lengths.tolist())
    ]
    assert penalty.item() == pytest.approx(0.5 * sum(squares) / 2, rel=1e-3)


def test_jacobian_has_the_derivative_of_the_norm():
    """By central differences of the exact norm, in each of a few random directions of all parameters."""
    model, batch = model_of(depth=1), batch_of((5,))
    model.blocks[0].attention.branch.fused = False
    torch.manual_seed(3)
    _, penalty = jacobian(model, batch, weight=1.0, iterations=300)
    parameters = [p for name, p in model.named_parameters() if not name.startswith("unembedding")]
    gradients = torch.autograd.grad(penalty, parameters, materialize_grads=True, allow_unused=True)

    def exact():
        return norm_2(full_jacobian(model.trunk, model.embed(batch.inputs))).item() ** 2

    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        steps = [torch.randn(p.shape, generator=generator, dtype=F64) for p in parameters]
        slope = sum((gradient * step).sum().item() for gradient, step in zip(gradients, steps, strict=True))
        ends = []
        for sign in (1e-5, -1e-5):
            with torch.no_grad():
                for p, step in zip(parameters, steps, strict=True):
                    p.add_(step, alpha=sign)
            ends.append(exact())
            with torch.no_grad():
                for p, step in zip(parameters, steps, strict=True):
                    p.add_(step, alpha=-sign)
        assert slope == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=2e-2)


PENALTIES = [
    functools.partial(jasmin, weight=1.0, k=0),
    functools.partial(jasmin, weight=1.0, k=2),
    functools.partial(jacobian, weight=1.0, iterations=3),
]


@pytest.mark.parametrize("penalty", PENALTIES, ids=["jasmin_0", "jasmin_2", "jacobian"])
def test_alone_it_goes_down(penalty):
    model, batch = model_of(TiedL2Attention), batch_of()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    values = []
    for _ in range(15):
        torch.manual_seed(0)
        _, value = penalty(model, batch)
        values.append(value.item())
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    assert values[-1] < values[0] - 0.1 * abs(values[0])


def test_none_penalises_nothing():
    model, batch = model_of(), batch_of()
    logits, penalty = no_regularizer(model, batch)
    assert penalty is None
    assert torch.equal(logits, model(batch.inputs))


# --- in training ------------------------------------------------------------------------------------------------


def figures(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def run(tmp_path, monkeypatch):
    text = write_text(tmp_path / "text.txt")

    def start(name, *options):
        texts = () if any(option.startswith("resume=") for option in options) else (f"data.train={text}",)
        return train(monkeypatch, *texts, f"hydra.run.dir={tmp_path / name}", *options)

    return start


def test_runs_log_the_penalty_beside_pure_nats_and_go_on(run, tmp_path):
    assert run("none") == 0
    nats = figures(tmp_path / "none")[0]["train/nats_per_char"]
    assert "train/regularizer" not in figures(tmp_path / "none")[0]
    for choice in ("jasmin", "jacobian"):
        options = (f"regularizer={choice}", "regularizer.weight=0.3", "trainer.max_steps=2")
        assert run(choice, *options, *(("regularizer.k=3",) if choice == "jasmin" else ())) == 0
        first = figures(tmp_path / choice)[0]
        assert float(first["train/regularizer"]) > 0
        assert float(first["train/nats_per_char"]) == pytest.approx(float(nats), rel=1e-6)
        assert run(f"{choice}_on", f"resume={tmp_path / choice}", "trainer.max_steps=3") == 0
        logged = [
            float(row["train/regularizer"]) for row in figures(tmp_path / f"{choice}_on") if row["train/regularizer"]
        ]
        assert len(logged) == 3
        assert min(logged) > 0
        assert load_run(tmp_path / f"{choice}_on").config["regularizer"]["weight"] == 0.3


def test_a_checkpoint_older_than_the_group_loads_and_goes_on(run, tmp_path):
    assert run("old", "trainer.max_steps=2") == 0
    for path in (tmp_path / "old" / "checkpoints").glob("*.ckpt"):
        checkpoint = torch.load(path, weights_only=True)
        del checkpoint["lipformer"]["config"]["regularizer"]
        del checkpoint["lipformer"]["config"]["trainer"]["compile"]
        torch.save(checkpoint, path)
    assert load_run(tmp_path / "old").config["regularizer"]["_target_"].endswith("no_regularizer")
    assert run("new", f"resume={tmp_path / 'old'}", "trainer.max_steps=3") == 0


@pytest.mark.parametrize("choice", ["jasmin", "jacobian"])
def test_compilation_with_a_regularizer_is_refused(choice, run, tmp_path, capsys):
    assert run("refused", f"regularizer={choice}", "trainer.compile=true") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: trainer.compile=True does not go with a regularizer")
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (lambda: JasminOptions.check(weight=0.0, k=0), "above 0"),
        (lambda: JasminOptions.check(weight=1.0, k=1), "0, or at least 2"),
        (lambda: JasminOptions.check(weight=1.0, k=-1), "0, or at least 2"),
        (lambda: JacobianOptions.check(weight=1.0, iterations=0), "at least 1"),
    ],
)
def test_options_out_of_range_are_refused(build, wanted):
    with pytest.raises(ValueError, match=wanted):
        build()


def test_compile_compiles_the_model_in_place(run, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **options: calls.append((type(self), options)))
    assert run("eager") == 0
    assert not calls
    assert run("compiled", "trainer.compile=true") == 0
    assert calls == [(CharTransformer, {"dynamic": True})]


def test_compiled_code_of_one_job_does_not_take_the_place_of_the_next():
    """A function is compiled for a limited number of shapes; the next job of a sweep has its own."""
    compiled = []

    def count(graph, inputs):
        compiled.append(graph)
        return graph.forward

    add = torch.compile(lambda x: x + 1, backend=count, dynamic=False)
    with flags_restored():
        for length in range(2, 14):
            add(torch.zeros(length))
    first = len(compiled)
    assert first < 12
    with flags_restored():
        add(torch.zeros(20))
    assert len(compiled) == first + 1


@pytest.mark.slow
def test_a_compiled_run_learns_the_same(run, tmp_path):
    assert run("eager", "attention=tied_l2") == 0
    assert run("compiled", "attention=tied_l2", "trainer.compile=true") == 0
    one, two = (
        torch.load(tmp_path / name / "checkpoints/last.ckpt", weights_only=True) for name in ("eager", "compiled")
    )
    assert one["state_dict"].keys() == two["state_dict"].keys()
    for a, b in zip(figures(tmp_path / "eager"), figures(tmp_path / "compiled"), strict=True):
        for name in ("train/nats_per_char", "val/nats_per_char"):
            if a[name]:
                assert float(b[name]) == pytest.approx(float(a[name]), rel=1e-4)
