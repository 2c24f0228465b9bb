"""Every attention group file builds its kind, with the options it states."""

import functools
import inspect
import json
import math
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from lipformer.config import conf_dir, register, to_plain
from lipformer.config.targets import factory, locate
from lipformer.modules import attention
from lipformer.modules.attention.base import FusedAttention

FOLDER = Path(__file__).parent.parent / "conf" / "attention"
CLASSES = {file.stem: locate(OmegaConf.load(file)["_target_"], "attention") for file in sorted(FOLDER.glob("*.yaml"))}
STATED = {"tied_l2_matched": {"columns": 2}, "relu_kernel": {"features": "relu"}}
"""What a file states beside the class."""
INITIAL = json.loads((Path(__file__).parent / "initial_weights.json").read_text())


@functools.cache
def options_of(name: str, *overrides: str) -> dict:
    register()
    with initialize_config_dir(str(conf_dir().resolve()), version_base="1.3"):
        return to_plain(compose("train", [f"attention={name}", *overrides]))["attention"]


@pytest.mark.parametrize("name", list(CLASSES))
def test_file_builds_its_class(name):
    layer = factory(options_of(name), "attention")(8, 2, context=6, causal=True, dropout=0.1)
    assert type(layer) is CLASSES[name]
    assert layer.fused if isinstance(layer, FusedAttention) else not hasattr(layer, "fused")
    assert isinstance(layer.caveat, str)
    if hasattr(layer, "query"):
        assert layer.query.weight.shape == (16 if name == "tied_l2_matched" else 8, 8)


@pytest.mark.parametrize("name", list(CLASSES))
def test_by_hand_and_by_name_is_the_same_layer(name):
    torch.manual_seed(0)
    by_name = factory(options_of(name), "attention")(8, 2, context=6)
    torch.manual_seed(0)
    by_hand = CLASSES[name](8, 2, context=6, **STATED.get(name, {}))
    plain = (int, float, str, type(None))
    settings = [
        {key: value for key, value in vars(layer).items() if isinstance(value, plain)} for layer in (by_name, by_hand)
    ]
    assert settings[0] == settings[1]
    torch.testing.assert_close(by_name.state_dict(), by_hand.state_dict(), rtol=0, atol=0)
    x = torch.randn(1, 6, 8)
    torch.testing.assert_close(by_name(x), by_hand(x), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["contractive_l2_decoupled", "contractive_l2_blocks"])
def test_our_own_kinds_construct_as_they_learn(kind):
    layer = CLASSES[kind](8, 2, context=6)
    assert layer.log_temperature.exp().tolist() == pytest.approx([0.0625, 0.0625])
    assert layer.slope.tolist() == pytest.approx([1.0, 1 / 64])
    without_an_order = CLASSES[kind](8, 2, context=6, causal=False)
    assert without_an_order.slope is None
    with pytest.raises(ValueError, match="locality needs causal attention"):
        CLASSES[kind](8, 2, context=6, causal=False, locality=1.0)


@pytest.mark.parametrize("name", INITIAL)
def test_a_seed_gives_the_weights_of_old(name):
    """Names, shapes, order and values of version 0.1.0, to the rounding of another machine."""
    row = INITIAL[name]
    options = {key: math.inf if value == "inf" else value for key, value in row["options"].items()}
    torch.manual_seed(0)
    layer = getattr(attention, row["class"])(16, 4, context=12, dropout=0.25, **options)
    state = layer.state_dict()
    assert list(state) == list(row["weights"])
    for weight, (shape, total) in row["weights"].items():
        assert list(state[weight].shape) == shape
        assert float(state[weight].double().sum()) == pytest.approx(total, abs=1e-4), weight


@pytest.mark.parametrize("kind", sorted(set(CLASSES.values()), key=lambda kind: kind.__name__))
def test_a_wrong_keyword_is_named(kind):
    parameters = list(inspect.signature(kind).parameters)
    assert parameters[:5] == ["width", "heads", "context", "causal", "dropout"]
    assert "kwargs" not in parameters
    with pytest.raises(
        TypeError, match=f"^{kind.__name__} takes no colums; it takes width, heads, .*{parameters[-1]}$"
    ):
        kind(8, 2, context=6, colums=2)


def test_a_kind_of_ones_own_has_its_own_signature():
    class Fixed(attention.TiedL2Attention):
        def __init__(self, width: int, heads: int, *, context: int):
            super().__init__(width, heads, context=context, columns=2)

    class Longer(attention.TiedL2Attention):
        def __init__(self, width: int, heads: int, *, columns: int = 3, **tied):
            super().__init__(width, heads, columns=columns, **tied)

    assert list(inspect.signature(Fixed).parameters) == ["width", "heads", "context"]
    assert inspect.signature(Longer).parameters["columns"].default == 3
    assert inspect.signature(Longer).parameters["locality"].default is None


def test_contractive_options():
    assert factory(options_of("contractive_l2"), "attention")(8, 2, context=6).p == "mixed"
    for spelling, p in [("2", 2), ("inf", math.inf)]:
        options = options_of("contractive_l2", f"attention.p={spelling}")
        assert factory(options, "attention")(8, 2, context=6).p == p
    assert attention.ContractiveL2Attention(8, 2, context=6, p="inf").p == math.inf


@pytest.mark.parametrize("name", list(CLASSES))
def test_head_comment_states_formula_constant_and_source(name):
    head = (FOLDER / f"{name}.yaml").read_text().split("_target_")[0]
    assert "# Lipschitz: " in head
    assert "# Source: " in head
    assert "arXiv" in head
