"""The explicit path for all layers of a module at once."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from lipformer.modules.contracts import TwoPaths


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
