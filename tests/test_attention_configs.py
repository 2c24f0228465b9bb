"""Every attention group file builds its kind, with the options it states."""

import math
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from lipformer.modules import attention

FOLDER = Path(__file__).parent.parent / "conf" / "attention"
CLASSES = {
    "dot_product": attention.DotProductAttention,
    "l2": attention.L2Attention,
    "tied_l2": attention.TiedL2Attention,
    "tied_l2_matched": attention.TiedL2Attention,
    "contractive_l2": attention.ContractiveL2Attention,
    "relu_kernel": attention.KernelAttention,
    "elu_kernel": attention.KernelAttention,
    "sigmoid": attention.SigmoidAttention,
    "qk_norm": attention.QKNormAttention,
    "cosine": attention.CosineAttention,
}


@pytest.mark.parametrize("name", list(CLASSES))
def test_file_builds_its_class(name):
    config = OmegaConf.load(FOLDER / f"{name}.yaml")
    config.pop("defaults", None)
    layer = instantiate(config)(8, 2, context=6, causal=True, dropout=0.1)
    assert type(layer) is CLASSES[name]
    assert layer.fused if hasattr(layer, "fused") else name == "sigmoid"
    assert isinstance(layer.caveat, str)
    assert layer.query.weight.shape == (16 if name == "tied_l2_matched" else 8, 8)


def test_contractive_options():
    config = OmegaConf.load(FOLDER / "contractive_l2.yaml")
    config.pop("defaults", None)
    assert instantiate(config)(8, 2, context=6).p == "mixed"
    for spelling, p in [(2, 2), ("inf", math.inf), (math.inf, math.inf)]:
        config.p = spelling
        assert instantiate(config)(8, 2, context=6).p == p


@pytest.mark.parametrize("name", list(CLASSES))
def test_head_comment_states_formula_constant_and_source(name):
    head = (FOLDER / f"{name}.yaml").read_text().split("_target_")[0]
    assert "# Lipschitz: " in head
    assert "# Source: " in head
    assert "arXiv" in head
