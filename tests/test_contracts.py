"""Which contract each shipped kind keeps, and what becomes of a part that keeps none."""

import ast
import inspect
import math
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from torch import nn

from lipformer.assembly.build import build_model
from lipformer.config import conf_dir, register, to_plain
from lipformer.config.targets import factory
from lipformer.modules import contracts, walk
from lipformer.modules.attention import TiedL2Attention
from lipformer.modules.contracts import (
    Attends,
    TwoPaths,
)
from lipformer.modules.feedforward import ContractiveFeedForward, FeedForward
from lipformer.modules.normalisations import ActNorm, LayerNorm, NoNorm
from lipformer.modules.residual import InvertibleResidual, PostNorm, PreNorm

PROTOCOLS = {
    contract.__name__: contract
    for contract in vars(contracts).values()
    if inspect.isclass(contract)
    and getattr(contract, "_is_protocol", False)
    and contract.__module__ == "lipformer.modules.contracts"
}
SOFTMAX = "Attends HasScores Lipschitz TwoPaths"
CONTRACTIVE = f"Contractive NamesItsMaps {SOFTMAX}"
KINDS = {
    ("attention", "dot_product"): f"LipschitzOnBall {SOFTMAX}",
    ("attention", "l2"): SOFTMAX,
    ("attention", "tied_l2"): SOFTMAX,
    ("attention", "tied_l2_matched"): SOFTMAX,
    ("attention", "contractive_l2"): CONTRACTIVE,
    ("attention", "contractive_l2_decoupled"): CONTRACTIVE,
    ("attention", "contractive_l2_blocks"): CONTRACTIVE,
    ("attention", "qk_norm"): f"LipschitzOnBall {SOFTMAX}",
    ("attention", "cosine"): SOFTMAX,
    ("attention", "sigmoid"): "Attends HasScores Lipschitz LipschitzOnBall",
    ("attention", "relu_kernel"): "Attends Lipschitz LipschitzOnBall TwoPaths",
    ("attention", "elu_kernel"): "Attends Lipschitz LipschitzOnBall TwoPaths",
    ("norm", "layer_norm"): "BoundedOutput Lipschitz",
    ("norm", "rms_norm"): "BoundedOutput Lipschitz",
    ("norm", "center_norm"): "BoundedOutput Lipschitz",
    ("norm", "act_norm"): "BoundedOutput InvertibleNormalisation Lipschitz",
    ("norm", "none"): "BoundedOutput InvertibleNormalisation Lipschitz",
    ("residual", "post_norm"): "Lipschitz",
    ("residual", "pre_norm"): "Lipschitz",
    ("residual", "weighted"): "Lipschitz",
    ("residual", "convex"): "Lipschitz",
    ("residual", "invertible"): "Invertible InvertibleNormalisation Lipschitz",
    ("feedforward", "relu"): "Lipschitz",
    ("feedforward", "gelu"): "Lipschitz",
    ("feedforward", "contractive"): "Contractive Lipschitz NamesItsMaps",
    ("feedforward", "none"): "Contractive Lipschitz",
    ("position", "learned"): "Lipschitz",
    ("position", "sinusoidal"): "Lipschitz",
    ("embedding", "full"): "",
    ("embedding", "blank"): "",
}
"""An Invertible is an InvertibleNormalisation as far as names of methods go."""


def keeps(part: nn.Module, contract: type) -> bool:
    """isinstance as Python 3.12 does it: without ``__getattr__``, so without parameters, buffers and submodules."""
    for name in contract.__protocol_attrs__ if hasattr(contract, "__protocol_attrs__") else members(contract):
        member = inspect.getattr_static(part, name, None)
        if member is None:
            return False
    return True


def members(contract: type) -> set[str]:
    return {name for name in (*vars(contract), *contract.__annotations__) if not name.startswith("_")}


def composed(*overrides):
    """The default configuration with some choices, as plain data."""
    register()
    with initialize_config_dir(str(conf_dir().resolve()), version_base="1.3"):
        config = compose("train", [*overrides, "width=8", "heads=2", "depth=1", "context=6"])
    return to_plain(config)


def part_of(group, choice):
    make = factory(composed(f"{group}={choice}")[group], group)
    if group == "attention":
        return make(8, 2, context=6, causal=True, dropout=0.1)
    if group == "residual":
        return make(ContractiveFeedForward(8), NoNorm, 8)
    return make(*{"norm": (8,), "feedforward": (8,), "position": (6, 8), "embedding": (11, 8)}[group])


def test_every_choice_of_every_group_has_a_row():
    groups = {group for group, _ in KINDS}
    files = {(group, file.stem) for group in groups for file in (conf_dir() / group).glob("*.yaml")}
    assert files == set(KINDS)


@pytest.mark.parametrize(("group", "choice"), KINDS)
def test_a_kind_keeps_its_contracts_on_every_python(group, choice):
    part = part_of(group, choice)
    assert " ".join(sorted(name for name, contract in PROTOCOLS.items() if keeps(part, contract))) == " ".join(
        sorted(KINDS[group, choice].split())
    )
    for contract in PROTOCOLS.values():
        assert isinstance(part, contract) == keeps(part, contract), contract.__name__
    stated = [contracts.caveat(part), *contracts.weight_methods(part)]
    assert all(isinstance(text, str) for text in stated)
    assert all(callable(getattr(type(part), name)) for name in contracts.weight_methods(part))


def test_a_models_contracts():
    model = build_model(composed("residual=pre_norm", "attention=tied_l2", "norm=layer_norm"), 11)
    assert {name for name, contract in PROTOCOLS.items() if keeps(model, contract)} == {
        "HasTrunk",
        "Invertible",  # it answers; whether it is, its layers say
        "InvertibleNormalisation",
        "Lipschitz",
    }
    assert "PreNorm is not invertible" in model.inversion_obstacle()


@pytest.mark.parametrize("contract", PROTOCOLS.values(), ids=PROTOCOLS)
def test_protocols_have_methods_only(contract):
    """But for the one attribute that is set from outside; from 3.12 isinstance does not see what torch keeps."""
    values = {name for name in members(contract) if not inspect.isfunction(vars(contract).get(name))}
    assert values == ({"fused"} if contract is TwoPaths else set())
    assert inspect.getdoc(contract), "what a part that lacks it loses"


@pytest.mark.parametrize("contract", [c for c in PROTOCOLS.values() if c is not TwoPaths], ids=lambda c: c.__name__)
def test_one_who_derives_must_have_the_methods(contract):
    forgot = type("Forgot", (nn.Module, contract), {})
    with pytest.raises(TypeError, match="abstract"):
        forgot()
    methods = {name: lambda self, *arguments: None for name in members(contract)}
    assert isinstance(type("Kept", (nn.Module, contract), methods)(), contract)


def test_a_submodule_of_a_methods_name_keeps_no_contract_on_any_python():
    part = nn.Module()
    part.attention_weights = nn.Linear(2, 2)
    assert not keeps(part, Attends)


def test_contracts_and_walk_import_nothing_above_them():
    allowed = {
        contracts: {"lipformer.functional.spectral", "lipformer.modules.fixed_point"},  # the latter for types alone
        walk: {"lipformer.modules.contracts"},
    }
    for module, names in allowed.items():
        tree = ast.parse(Path(module.__file__).read_text())
        found = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert {name for name in found if name.startswith("lipformer")} == names


# --- what counts where nothing is stated -----------------------------------------------------------------------


class Bare(nn.Module):
    """Only forward."""

    def __init__(self, width=4, *_, **__):
        super().__init__()
        self.map = nn.Linear(width, width)

    def forward(self, x):
        return self.map(x).tanh()


def test_nothing_stated():
    part = Bare()
    assert contracts.lipschitz_bound(part).item() == math.inf
    assert contracts.output_radius(part).item() == math.inf
    assert contracts.caveat(part) == ""
    assert contracts.longest_input(part) is contracts.context(part) is contracts.joined_heads(part) is None
    assert contracts.causal(part)
    assert contracts.weight_methods(part) == contracts.chain(part) == ()
    assert contracts.branch_scale(part) == 1.0
    assert not contracts.normalises_output(part)
    assert contracts.inversion_obstacle(part).startswith("Bare is not invertible")


def test_what_torch_keeps_is_found_where_it_is_a_value():
    part = Bare()
    part.branch_scale = nn.Parameter(torch.full((4,), 0.5))
    assert contracts.branch_scale(part) is part.branch_scale
    assert contracts.joined_heads(TiedL2Attention(4, 2, context=3))[0] == 2


@pytest.mark.parametrize("kind", [PostNorm, PreNorm])
def test_a_residual_around_a_silent_part_has_no_bound(kind):
    silent_branch, silent_norm = kind(Bare(), NoNorm, 4), kind(FeedForward(4), Bare, 4)
    for residual in (silent_branch, silent_norm):
        assert residual.lipschitz_bound("mixed").item() == math.inf
    if kind is PreNorm:
        on_ball = type("OnBall", (Bare,), {"lipschitz_bound_on_ball": lambda *_: torch.tensor(2.0)})
        assert kind(on_ball(), Bare, 4).lipschitz_bound().item() == math.inf, "behind a norm of unknown size"
        assert kind(on_ball(), LayerNorm, 4).lipschitz_bound().isfinite()


def test_invertibility_is_the_instances():
    residual = InvertibleResidual(ContractiveFeedForward(4), ActNorm, 4)
    assert contracts.inversion_obstacle(residual) == ""
    residual.norm = LayerNorm(4)
    assert "LayerNorm is not" in contracts.inversion_obstacle(residual)
    with pytest.raises(TypeError, match="LayerNorm is not"):
        residual.invert(torch.ones(1, 2, 4))
    residual.norm, residual.branch = NoNorm(), Bare()
    assert "Bare is not" in contracts.inversion_obstacle(residual)
