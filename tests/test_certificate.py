"""The certificate of a model: its rows, its totals, and that neither can be exceeded."""

import json
import math
from functools import partial

import pytest
import torch
from torch import nn

import lipformer
from lipformer.bounds.certificate import NOT_FINITE, certify
from lipformer.functional.sequence_norms import sequence_norm
from lipformer.models.transformer import CharTransformer
from lipformer.modules.attention import TiedL2Attention
from lipformer.modules.embedding import TokenEmbedding
from lipformer.modules.feedforward import FeedForward
from lipformer.modules.linear import dense
from lipformer.modules.normalisations import LayerNorm, NoNorm
from lipformer.modules.position import LearnedPosition
from lipformer.modules.residual import PostNorm, PreNorm

NORMS = (2, math.inf, "mixed")


class Branch(nn.Module):
    """A linear branch that knows its constants."""

    def __init__(self, width=4, gain=1.0, caveat="linear"):
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
        self.caveat = caveat
        with torch.no_grad():
            self.linear.weight.mul_(gain)

    def forward(self, x):
        return self.linear(x)

    def lipschitz_bound(self, p=2, length=None):
        weight = self.linear.weight.double()
        if p == math.inf:
            return weight.abs().sum(-1).amax()
        return torch.linalg.matrix_norm(weight, 2)


class Skip(nn.Module):
    """norm(x + f(x))."""

    caveat = ""

    def __init__(self, branch, norm):
        super().__init__()
        self.branch, self.norm = branch, norm

    def forward(self, x):
        return self.norm(x + self.branch(x))

    def lipschitz_bound(self, p=2, length=None):
        return (1 + self.branch.lipschitz_bound(p, length)) * self.norm.lipschitz_bound(p, length)


class Block(nn.Module):
    chain = ("attention", "feedforward")

    def __init__(self, attention, feedforward):
        super().__init__()
        self.attention, self.feedforward = attention, feedforward

    def forward(self, x):
        return self.feedforward(self.attention(x))


class Model(nn.Module):
    """Blocks of linear residuals; ``context`` 8 of at most 10 tokens."""

    context = 8
    longest_input = 10

    def __init__(self, depth=2, width=4, symbols=3):
        super().__init__()
        self.blocks = nn.Sequential(*(Block(Skip(Branch(), Branch()), Skip(Branch(), Branch())) for _ in range(depth)))
        self.final_norm = nn.Identity()
        self.unembedding = nn.Linear(width, symbols)

    def trunk(self, x):
        return self.final_norm(self.blocks(x))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


def multiplying(certificate, *roles):
    return [row for row in certificate.rows if row.role in roles]


@pytest.mark.parametrize("p", NORMS)
def test_rows_and_totals(model, p):
    certificate = certify(model, p)
    names = [row.name for row in multiplying(certificate, "trunk")]
    assert names == [
        "blocks.0.attention",
        "blocks.0.feedforward",
        "blocks.1.attention",
        "blocks.1.feedforward",
        "final_norm",
    ]
    parts = [row.name for row in multiplying(certificate, "part")]
    assert parts == [f"{name}.{part}" for name in names[:4] for part in ("branch", "norm")]
    modules = dict(model.named_modules())
    for row in certificate.rows:
        assert row.kind == type(modules[row.name]).__name__
        if row.kind in ("Skip", "Branch"):
            assert row.bound == pytest.approx(modules[row.name].lipschitz_bound(p).item(), rel=1e-14)
    head = certificate.rows[-1]
    assert (head.name, head.role) == ("unembedding", "unembedding")
    weight = model.unembedding.weight.detach().double()
    exact = weight.abs().sum(1).amax() if p == math.inf else torch.linalg.matrix_norm(weight, 2)
    assert head.bound == pytest.approx(exact.item(), rel=1e-14)
    assert certificate.trunk == pytest.approx(math.prod(row.bound for row in multiplying(certificate, "trunk")))
    assert certificate.logits == pytest.approx(certificate.trunk * head.bound)


@pytest.mark.parametrize("p", NORMS)
def test_totals_are_never_below_a_linear_models_norm(model, p):
    """All maps are linear here and act on each token: the norm of their product is known."""
    eye = torch.eye(4)
    with torch.no_grad():
        trunk = model.trunk(eye).T.double()
        logits = model.unembedding.weight.double() @ trunk
    order = math.inf if p == math.inf else 2
    certificate = certify(model, p)
    assert torch.linalg.matrix_norm(trunk, order) <= certificate.trunk
    assert torch.linalg.matrix_norm(logits, order) <= certificate.logits


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("residual", [PostNorm, PreNorm])
def test_the_real_models_own_bound_is_the_same_and_holds(p, residual):
    """Against pairs of sequences near and far, trunk and logits."""
    torch.manual_seed(0)
    model = CharTransformer(
        5,
        width=4,
        heads=2,
        depth=2,
        context=6,
        attention=TiedL2Attention,
        norm=partial(LayerNorm, eps=1.0) if residual is PreNorm else NoNorm,
        residual=residual,
        feedforward=partial(FeedForward, activation="gelu"),
        position=LearnedPosition,
        embedding=TokenEmbedding,
        linear=dense,
    ).double()
    certificate = certify(model, p)
    assert certificate.trunk == pytest.approx(model.lipschitz_bound(p).item(), rel=1e-9)
    assert math.isfinite(certificate.trunk)
    x = torch.randn(64, 6, 4, dtype=torch.float64)
    for size in (1e-4, 1.0):
        y = x + size * torch.randn_like(x)
        moved = sequence_norm(x - y, p)
        features = model.trunk(x) - model.trunk(y)
        logits = model.unembedding(model.trunk(x)) - model.unembedding(model.trunk(y))
        assert (sequence_norm(features, p) <= certificate.trunk * moved).all()
        assert (sequence_norm(logits, p) <= certificate.logits * moved).all()


def test_one_chain_of_aligned_maps_attains_its_total():
    """Multiples of the identity: nothing is lost in the product, and the allowance for rounding is small."""
    model = Model(depth=1)
    for module in model.modules():
        if isinstance(module, Branch):
            module.linear.weight.data = 0.1 * torch.eye(4)
    nn.init.eye_(model.unembedding.weight)
    certificate = certify(model)
    exact = (1.1 * 0.1) ** 2
    assert exact < certificate.trunk < exact * (1 + 1e-6)  # 0.1 in float32 is a little more
    assert certificate.logits == pytest.approx(certificate.trunk, rel=1e-11)
    assert certificate.logits >= certificate.trunk


def test_eval_mode_is_what_is_certified_and_the_mode_is_kept(model):
    class NoisyBranch(Branch):
        def lipschitz_bound(self, p=2, length=None):
            return super().lipschitz_bound(p, length) * (2 if self.training else 1)

    model.blocks[0].attention.branch = NoisyBranch()
    evaluated = certify(model.eval())
    model.train()
    model.blocks[1].eval()
    modes = [module.training for module in model.modules()]
    assert certify(model) == evaluated
    assert [module.training for module in model.modules()] == modes


def test_the_mode_is_kept_where_a_layer_fails(model):
    model.blocks[0].attention.lipschitz_bound = lambda p, length: 1 / 0
    model.train()
    with pytest.raises(ZeroDivisionError):
        certify(model)
    assert model.training


def test_length(model):
    class Lengthy(Branch):
        def lipschitz_bound(self, p=2, length=None):
            return torch.tensor(float(length))

    model.blocks[0].attention = Lengthy()
    assert certify(model).length == certify(model).rows[0].bound == 8
    assert certify(model, length=10).rows[0].bound == 10
    with pytest.raises(ValueError, match="length=11: the model reads at most 10 tokens"):
        certify(model, length=11)
    with pytest.raises(ValueError, match="at least 1"):
        certify(model, length=0)
    model.longest_input = None
    assert certify(model, length=1000).length == 1000


def test_layers_without_a_bound(model):
    class Strange(nn.Module):
        def forward(self, x):
            return x**2

    class OtherLinear(nn.Linear):
        def forward(self, x):
            return super().forward(x) ** 3

    model.final_norm = Strange()
    certificate = certify(model)
    assert certificate.rows[-2].bound == certificate.trunk == certificate.logits == math.inf
    assert certificate.rows[-2].caveat == "no lipschitz_bound"
    model.final_norm = nn.Identity()
    model.unembedding = OtherLinear(4, 3)
    certificate = certify(model)
    assert certificate.logits == math.inf > certificate.trunk
    model.blocks[1].feedforward = Skip(Branch(), Strange())
    rows = {row.name: row for row in certify(model).rows}
    assert rows["blocks.1.feedforward"].bound == math.inf
    assert rows["blocks.1.feedforward"].caveat == "no lipschitz_bound: Strange"
    assert rows["blocks.1.feedforward.norm"].bound == math.inf
    assert math.isfinite(rows["blocks.1.feedforward.branch"].bound)


def test_modules_of_torch(model):
    model.final_norm = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.5), nn.Identity(), nn.Tanh())
    rows = {row.name: row for row in certify(model.train()).rows}
    weight = model.final_norm[0].weight.detach().double()
    assert rows["final_norm.0"].bound == pytest.approx(torch.linalg.matrix_norm(weight, 2).item())
    assert [rows[f"final_norm.{i}"].bound for i in (1, 2, 3, 4)] == [1, 1, 1, math.inf]


def test_a_parametrised_weight_is_the_one_that_counts(model):
    class Triple(nn.Module):
        def forward(self, weight):
            return 3 * weight

    plain = certify(model).rows[-1].bound
    nn.utils.parametrize.register_parametrization(model.unembedding, "weight", Triple())
    assert certify(model).rows[-1].bound == pytest.approx(3 * plain)


def test_a_branch_bounded_by_what_it_is_fed(model):
    class Unbounded(Branch):
        def lipschitz_bound(self, p=2, length=None):
            return torch.tensor(math.inf)

    class PreSkip(Skip):
        def lipschitz_bound(self, p=2, length=None):
            return torch.tensor(5.0)

    model.blocks[0].attention = PreSkip(Unbounded(caveat="not Lipschitz"), Branch())
    certificate = certify(model)
    rows = {row.name: row for row in certificate.rows}
    assert rows["blocks.0.attention.branch"].bound == math.inf
    assert rows["blocks.0.attention.branch"].caveat == "not Lipschitz; bounded here, where its inputs are"
    assert math.isfinite(certificate.trunk)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_never_certified(model, bad):
    with torch.no_grad():
        model.blocks[0].attention.branch.linear.weight[0, 0] = bad
        model.unembedding.weight.zero_()
    certificate = certify(model)
    assert certificate.rows[0].bound == certificate.trunk == certificate.logits == math.inf
    assert certificate.rows[0].caveat == NOT_FINITE
    with torch.no_grad():
        model.blocks[0].attention.branch.linear.weight.zero_()
    assert certify(model).logits == 0


def test_nan_is_no_bound(model):
    model.blocks[0].attention.branch.lipschitz_bound = lambda p, length: torch.tensor(math.nan)
    assert certify(model).trunk == math.inf


def test_many_layers_overflow_to_infinity_not_nan():
    model = Model(depth=3)
    for block in model.blocks:
        block.attention = Branch(gain=1e38)
        block.feedforward = Skip(Branch(gain=1e38), Branch(gain=1e38))
    model.blocks[0].attention.lipschitz_bound = lambda p, length: torch.tensor(1e300, dtype=torch.float64)
    assert certify(model).trunk == math.inf


def test_plain_form_is_json_with_infinity_spelled_out(model):
    model.final_norm = nn.Tanh()
    certificate = certify(model, "inf")
    plain = json.loads(json.dumps(certificate.to_plain(), allow_nan=False))
    assert plain["p"] == plain["trunk"] == plain["logits"] == "inf"
    assert plain["length"] == 8
    assert "rounding" in plain["of"]
    assert [row["name"] for row in plain["rows"]] == [row.name for row in certificate.rows]
    assert plain["rows"][0]["bound"] == certificate.rows[0].bound


def test_what_is_no_model(model):
    with pytest.raises(TypeError, match="Linear has no blocks"):
        certify(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="p must be 2, inf or 'mixed'"):
        certify(model, "3")


def test_it_is_imported_from_the_package():
    assert lipformer.certify is certify
