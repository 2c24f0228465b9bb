"""One context puts every layer of a module on its explicit path, and back."""

import pytest
import torch
from torch import nn

from lipformer.modules.attention import DotProductAttention, TiedL2Attention
from lipformer.modules.contexts import explicit


def branch() -> nn.Sequential:
    first = TiedL2Attention(4, 2, context=6)
    second = DotProductAttention(4, 2, context=6, fused=False)
    return nn.Sequential(first, nn.ModuleList([nn.Identity(), second])[1], nn.ReLU()).double()


def test_all_layers_take_the_explicit_path_and_return():
    module = branch()
    with explicit(module):
        assert [layer.fused for layer in module[:2]] == [False, False]
    assert [layer.fused for layer in module[:2]] == [True, False]


def test_an_exception_restores_too():
    module = branch()
    with pytest.raises(KeyError), explicit(module):
        raise KeyError
    assert [layer.fused for layer in module[:2]] == [True, False]


def test_forward_mode_needs_it():
    module, x = branch(), torch.ones(1, 3, 4, dtype=torch.float64)
    with explicit(module):
        torch.func.jvp(module, (x,), (x,))
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.func.jvp(module, (x,), (x,))


def test_plain_functions_pass():
    with explicit(torch.relu):
        pass
