"""One walk over a model, and that all who take a model apart see the same layers in it."""

import math

import pytest
import torch
from torch import nn

from lipformer.bounds.certificate import certify
from lipformer.bounds.empirical import model_constants
from lipformer.models.transformer import CharTransformer
from lipformer.modules.attention import TiedL2Attention
from lipformer.modules.embedding import TokenEmbedding
from lipformer.modules.feedforward import FeedForward
from lipformer.modules.linear import dense
from lipformer.modules.normalisations import LayerNorm, NoNorm
from lipformer.modules.position import LearnedPosition
from lipformer.modules.residual import PostNorm, PreNorm
from lipformer.modules.walk import Place, walk, watching
from lipformer.telemetry.constants import inversion_statistics
from lipformer.telemetry.diagnosis import nonfinite_output
from lipformer.telemetry.layers import pass_through, range_statistics
from lipformer.telemetry.optimisation import layer_parameters

SYMBOLS, WIDTH, CONTEXT = 7, 4, 6


def build(depth=1, residual=PostNorm):
    torch.manual_seed(0)
    return CharTransformer(
        SYMBOLS,
        width=WIDTH,
        heads=2,
        depth=depth,
        context=CONTEXT,
        attention=TiedL2Attention,
        norm=LayerNorm,
        residual=residual,
        feedforward=FeedForward,
        position=LearnedPosition,
        embedding=TokenEmbedding,
        linear=dense,
    ).double()


def residual():
    return PostNorm(FeedForward(WIDTH, expansion=1), NoNorm, WIDTH).double()


class ThreeParts(nn.Module):
    """A user's block: three residuals, one after the other."""

    chain = ("first", "second", "third")

    def __init__(self):
        super().__init__()
        self.third, self.first, self.second = residual(), residual(), residual()

    def forward(self, x):
        return self.third(self.second(self.first(x)))


class Opaque(nn.Module):
    """A user's block that says nothing about itself but its constant."""

    def __init__(self):
        super().__init__()
        self.inner = residual()

    def forward(self, x):
        return self.inner(x).sin()

    def lipschitz_bound(self, p=2, length=None):
        return self.inner.lipschitz_bound(p, length)


class Recurrent(nn.Module):
    """A language model without blocks."""

    context = CONTEXT

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, WIDTH)
        self.network = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.unembedding = nn.Linear(WIDTH, SYMBOLS)

    def embed(self, ids):
        return self.embedding(ids)

    def trunk(self, x):
        return self.network(x)[0]

    def forward(self, ids):
        return self.unembedding(self.trunk(self.embed(ids)))


def ids(batch=2):
    return torch.randint(SYMBOLS, (batch, 5), generator=torch.Generator().manual_seed(1))


def names(model, *roles):
    return [place.name for place in walk(model) if place.role in roles]


def test_places_of_a_transformer():
    model = build(residual=PreNorm)
    places = list(walk(model))
    assert [(place.name, place.role) for place in places] == [
        ("embedding", "embedding"),
        ("position", "position"),
        ("blocks.0", "block"),
        ("blocks.0.attention", "residual"),
        ("blocks.0.attention.branch", "branch"),
        ("blocks.0.attention.norm", "norm"),
        ("blocks.0.feedforward", "residual"),
        ("blocks.0.feedforward.branch", "branch"),
        ("blocks.0.feedforward.norm", "norm"),
        ("final_norm", "final_norm"),
        ("unembedding", "unembedding"),
    ]
    modules = dict(model.named_modules())
    assert all(place.module is modules[place.name] for place in places)


def seen_by_all(model):
    """Layers' names as the certificate, telemetry, the optimisation groups and local constants give them."""
    certificate = [row.name for row in certify(model).rows if row.role == "trunk" and row.name != "final_norm"]
    passed = range_statistics(pass_through(model, ids()))
    ranges = {name.rpartition("/")[0] for name in passed} - {"trunk"}
    groups = [name for name in layer_parameters(model) if name.startswith("blocks")]
    constants = model_constants(model, ids(1), max_iterations=2)
    return certificate, ranges, groups, [name for name in constants if name.startswith("blocks")]


def test_a_chain_of_three_residuals_is_seen_alike_by_all():
    model = build()
    model.blocks.append(ThreeParts())
    new = [f"blocks.1.{name}" for name in ThreeParts.chain]
    layers = ["blocks.0.attention", "blocks.0.feedforward", *new]
    certificate, ranges, groups, constants = seen_by_all(model)
    assert certificate == groups == layers
    assert ranges == {"blocks.0", "blocks.1", *layers}
    assert constants == [f"{name}{part}" for name in layers for part in ("", ".branch", ".norm")]
    assert model.lipschitz_bound("mixed").item() == pytest.approx(certify(model).trunk)
    assert f"{new[2]}/branch_gain" in range_statistics(pass_through(model, ids()))


def test_a_block_without_chain_is_one_layer():
    model = build()
    model.blocks.append(Opaque())
    layers = ["blocks.0.attention", "blocks.0.feedforward", "blocks.1"]
    certificate, ranges, groups, constants = seen_by_all(model)
    assert certificate == groups == layers
    assert ranges == {"blocks.0", *layers}
    assert "blocks.1" in constants
    assert names(model, "part") == ["blocks.1.inner"]


def test_stacks_within_stacks():
    model = build()
    model.blocks.append(nn.Sequential(residual(), nn.Sequential(residual(), nn.ReLU())))
    model.final_norm = nn.Sequential(nn.Identity(), nn.ReLU())
    assert names(model, "block") == ["blocks.0", "blocks.1", "blocks.1.1"]
    layers = ["blocks.0.attention", "blocks.0.feedforward", "blocks.1.0", "blocks.1.1.0", "blocks.1.1.1"]
    assert names(model, "layer", "residual") == layers
    assert names(model, "stack") == ["final_norm"]
    assert names(model, "final_norm") == ["final_norm.0", "final_norm.1"]
    certificate, ranges, groups, constants = seen_by_all(model)
    assert certificate == [*layers, "final_norm.0", "final_norm.1"]
    assert groups == layers[:-1], "a ReLU has no parameters"
    assert ranges == {*names(model, "block"), *layers}
    assert set(constants) >= set(layers)


def test_what_overrides_the_stack_is_one_layer():
    class Backwards(nn.Sequential):
        def forward(self, x):
            for layer in reversed(list(self)):
                x = layer(x)
            return x

    model = build()
    model.blocks.append(Backwards(nn.ReLU(), nn.Identity()))
    assert "blocks.1" in names(model, "layer")


def test_a_layer_that_is_applied_twice_has_two_places():
    model = build()
    twice = residual()
    model.blocks.append(nn.Sequential(twice, twice))
    certificate, ranges, groups, constants = seen_by_all(model)
    assert certificate[-2:] == ["blocks.1.0", "blocks.1.1"]
    assert {"blocks.1.0", "blocks.1.1"} <= ranges
    assert groups[-1] == "blocks.1.0", "its parameters belong to the first place"
    assert {"blocks.1.0.branch", "blocks.1.1.branch"} <= set(constants)
    passed = pass_through(model, ids())
    between = passed["blocks.0"].y
    torch.testing.assert_close(passed["blocks.1.0"].x, between)
    torch.testing.assert_close(passed["blocks.1.1"].x, twice(between))
    torch.testing.assert_close(passed["blocks.1.1.branch"].x, twice(between))


def test_what_a_block_holds_beside_its_layers_is_a_group_of_its_own():
    model = build()
    model.blocks[0].scale = nn.Parameter(torch.ones(3))
    groups = layer_parameters(model)
    assert groups["blocks.0"] == [model.blocks[0].scale]
    assert sum(map(len, groups.values())) == len(list(model.parameters()))


def test_a_chain_names_what_there_is():
    model = build()
    model.blocks[0].chain = ("attention", "missing")
    with pytest.raises(AttributeError, match="missing"):
        list(walk(model))


@pytest.mark.parametrize("residual_of", [PostNorm, PreNorm])
def test_a_branch_alone_makes_a_residual(residual_of):
    """The certificate, too, shows the branch of a residual that has no norm."""

    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.branch = FeedForward(WIDTH).double()

        def forward(self, x):
            return x + self.branch(x)

        def lipschitz_bound(self, p=2, length=None):
            return 1 + self.branch.lipschitz_bound(p, length)

    model = build(residual=residual_of)
    model.blocks.append(nn.Sequential(Bare()))
    rows = {row.name: row for row in certify(model).rows}
    assert rows["blocks.1.0.branch"].role == "part"
    assert math.isfinite(rows["blocks.1.0"].bound)
    assert "blocks.1.0/branch_gain" in range_statistics(pass_through(model, ids()))


def test_a_model_without_blocks_is_certified_as_infinite_and_watched_as_far_as_it_goes():
    torch.manual_seed(0)
    model = Recurrent().double()
    assert [(place.name, place.role) for place in walk(model)] == [
        ("embedding", "embedding"),
        ("network", "other"),
        ("unembedding", "unembedding"),
    ]
    certificate = certify(model)
    assert [(row.name, row.kind, row.role) for row in certificate.rows] == [
        ("trunk", "Recurrent", "trunk"),
        ("unembedding", "Linear", "unembedding"),
    ]
    assert certificate.rows[0].caveat == "no lipschitz_bound"
    assert certificate.trunk == certificate.logits == math.inf
    assert math.isfinite(certificate.rows[1].bound)
    passed = pass_through(model, ids())
    assert set(passed) == {"trunk"}, "an LSTM returns no tensor but a pair"
    assert "trunk/range_ratio" in range_statistics(passed)
    assert inversion_statistics(model, passed) == {}
    assert list(layer_parameters(model)) == ["embedding", "network", "unembedding"]
    assert set(model_constants(model, ids(1), max_iterations=2)) == {"trunk", "logits"}
    with torch.no_grad():
        model.network.weight_hh_l0.fill_(math.inf)
    assert nonfinite_output(model, lambda: model(ids())) == "network"


def test_a_model_without_blocks_may_state_its_bound():
    class Stated(Recurrent):
        caveat = "of its own"

        def lipschitz_bound(self, p=2, length=None):
            return torch.tensor(float(length))

    certificate = certify(Stated(), length=3)
    assert (certificate.rows[0].bound, certificate.rows[0].caveat) == (3.0, "of its own")
    assert certificate.trunk == pytest.approx(3.0)


def test_a_model_without_embed_and_trunk_is_refused_in_words():
    model = nn.Sequential(nn.Embedding(SYMBOLS, WIDTH), nn.Linear(WIDTH, SYMBOLS))
    with pytest.raises(TypeError, match="Sequential has no blocks"):
        certify(model)
    with pytest.raises(TypeError, match="Sequential has no embed and trunk"):
        pass_through(model, ids())
    with pytest.raises(TypeError, match="Sequential has no embed and trunk"):
        model_constants(model, ids(1))
    assert list(layer_parameters(model)) == ["0", "1"]


def test_a_length_is_asked_for_where_the_model_states_no_context():
    model = Recurrent()
    model.context = None
    with pytest.raises(ValueError, match="give a length"):
        certify(model)
    assert certify(model, length=4).length == 4


def test_hooks_are_gone_after_an_exception():
    layer = nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="shapes"), watching([Place("layer", layer, "layer")]) as passed:  # noqa: PT012
        layer(torch.ones(1, 2))
        layer(torch.ones(1, 3))
    assert set(passed) == {"layer"}
    assert not layer._forward_hooks


def test_an_identity_on_the_way_costs_no_bound_and_no_inverse():
    model = build()
    model.blocks.append(nn.Identity())
    assert model.lipschitz_bound("mixed").isfinite()
    assert model.inversion_obstacle().startswith("PostNorm is not invertible")
    assert certify(model).trunk == pytest.approx(model.lipschitz_bound("mixed").item())
