"""Weights that a layer computes from its parameters, computed once for many calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def constant_weights(module: nn.Module) -> Iterator[None]:
    """Let layers inside `module` compute what depends on their parameters alone once, while the context lasts.

    A layer names the methods concerned in ``weight_methods``; they take no arguments. Without gradients: the context is
    for iterations such as the inverse of a residual, in which norms of weights would cost more than all else. On
    leaving, also by an exception, the methods are themselves again. Parameters must not change meanwhile.
    """
    layers: list[Any] = [layer for layer in module.modules() if hasattr(layer, "weight_methods")]
    try:
        with torch.no_grad():
            for layer in layers:
                for name in layer.weight_methods:
                    value = getattr(layer, name)()
                    layer.__dict__[name] = lambda value=value: value  # found before the method of the class
        yield
    finally:
        for layer in layers:
            for name in layer.weight_methods:
                layer.__dict__.pop(name, None)
