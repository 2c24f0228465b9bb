"""Finding the layer in which a training went wrong: the first whose weights, outputs or gradients are not finite."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lipformer.telemetry.optimisation import layer_norms, layer_parameters


def nonfinite_parameter(model: nn.Module) -> str | None:
    """Return the name of the first parameter that holds nan or infinity, or else of the first buffer that holds nan.

    Infinity in a buffer is often intended, as in a mask that is added to scores.
    """
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            return name
    return next((name for name, buffer in model.named_buffers() if buffer.isnan().any()), None)


def nonfinite_gradient(model: nn.Module) -> str | None:
    """Return the layer nearest to the loss whose gradient, or the gradient's norm, is nan or infinite.

    Backpropagation reaches it first; from there the fault spreads to all layers before it.
    """
    layers = layer_parameters(model)
    norms = layer_norms({name: [p.grad for p in parameters] for name, parameters in layers.items()})
    return next((name for name in reversed(layers) if not norms[name].isfinite()), None)


@torch.no_grad()
def nonfinite_output(model: nn.Module, forward: Callable[[], object]) -> str | None:
    """Return the name of the first module that turns finite inputs into nan or infinity while `forward` runs.

    Of nested modules it is the innermost one. Names are those of ``model.named_modules()``, and ``model`` for the model
    itself, where only its own output is at fault.

    Args:
        model: the model whose modules are watched.
        forward: calls the model on the batch in question; an exception in it ends the search.
    """
    found: list[str] = []

    def watch(name: str) -> Callable[[nn.Module, tuple[object, ...], object], None]:
        def hook(module: nn.Module, arguments: tuple[object, ...], output: object) -> None:
            if not found and not _finite(output) and all(map(_finite, arguments)):
                found.append(name)

        return hook

    handles = [module.register_forward_hook(watch(name or "model")) for name, module in model.named_modules()]
    try:
        forward()
    except (ArithmeticError, RuntimeError, ValueError):
        pass  # a module found before the exception is still the answer
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def _finite(value: object) -> bool:
    """Return whether a tensor, or all tensors of a tuple, are finite; True of anything else."""
    if isinstance(value, tuple):  # as a recurrent layer returns
        return all(map(_finite, value))
    return not isinstance(value, Tensor) or bool(value.isfinite().all())
