"""Contexts that change a module temporarily: eval mode, the explicit path, weights that are computed once."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from lipformer.modules.contracts import TwoPaths, weight_methods


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a module into eval mode, and restore the mode of each submodule afterwards, also after an exception."""
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
        function: a module; anything else, such as a lambda that calls a module, is left unchanged.
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
    """Compute once, for the whole context, what the layers inside `module` derive from their parameters alone.

    A layer names the methods concerned (`lipformer.modules.contracts.weight_methods`). No gradients are recorded: the
    context is for iterations such as the inverse of a residual, in which norms of weights would be the largest cost.
    Afterwards, also after an exception, the methods are restored. Parameters must not change in the meantime.
    """
    methods = [(layer, name) for layer in module.modules() for name in weight_methods(layer)]
    try:
        with torch.no_grad():
            for layer, name in methods:
                value = getattr(layer, name)()
                # An attribute of the instance hides the method of its class.
                layer.__dict__[name] = lambda value=value: value
        yield
    finally:
        for layer, name in methods:
            layer.__dict__.pop(name, None)
