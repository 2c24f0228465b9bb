"""A module in another state for as long as a context lasts: eval mode, the explicit path, weights computed once."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from lipformer.modules.contracts import TwoPaths, weight_methods


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Switch dropout off, and afterwards, also after an exception, give each module the mode that it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def explicit(function: object) -> Iterator[None]:
    """Let every layer with two paths inside ``function`` take the explicit one, differentiable to any order.

    Fused kernels have neither forward-mode derivatives nor second ones. Within the context the attribute
    ``fused`` of all submodules is False; on leaving, also by an exception, it is what it was.

    Args:
        function: a module; of anything else (a lambda that hides a module, say) nothing is known or changed.
    """
    modules = function.modules() if isinstance(function, nn.Module) else ()
    layers = [module for module in modules if isinstance(module, TwoPaths)]
    before = [layer.fused for layer in layers]
    try:
        for layer in layers:
            layer.fused = False
        yield
    finally:
        for layer, fused in zip(layers, before, strict=True):
            layer.fused = fused


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
