"""Weights that a layer computes from its parameters, computed once for many calls."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from lipformer.modules.contracts import weight_methods


@contextmanager
def constant_weights(module: nn.Module) -> Iterator[None]:
    """Let layers inside `module` compute what depends on their parameters alone once, while the context lasts.

    A layer names the methods concerned (`lipformer.modules.contracts.weight_methods`). Without gradients: the context
    is for iterations such as the inverse of a residual, in which norms of weights would cost more than all else. On
    leaving, also by an exception, the methods are themselves again. Parameters must not change meanwhile.
    """
    methods = [(layer, name) for layer in module.modules() for name in weight_methods(layer)]
    try:
        with torch.no_grad():
            for layer, name in methods:
                value = getattr(layer, name)()
                layer.__dict__[name] = lambda value=value: value  # found before the method of the class
        yield
    finally:
        for layer, name in methods:
            layer.__dict__.pop(name, None)
