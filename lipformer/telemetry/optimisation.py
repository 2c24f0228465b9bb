"""Norms of gradients, parameters and updates of an optimizer step, for each layer and in total."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipformer.modules.walk import walk
from lipformer.runs.metric_names import TOTAL

GROUPED = ("layer", "residual")
"""Roles of the modules within the blocks whose parameters are measured together."""


def layer_parameters(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Return the trained parameters of each layer, by the layer's name, in the order of the model.

    A layer is here a child of the model, or a layer of a block (`lipformer.modules.walk`), such as the attention with
    its normalisation. The parameters that a block has besides those of its layers stand under the block's name. Layers
    without parameters are left out; a parameter that two layers share belongs to the first.
    """
    places = list(walk(model))
    layers = {place.name: place.module for place in places if place.role in GROUPED or "." not in place.name}
    layers.update({place.name: place.module for place in places if place.role == "block"})
    taken: set[int] = set()
    found: dict[str, list[nn.Parameter]] = {}
    for name, module in layers.items():
        own = [p for p in module.parameters() if p.requires_grad and id(p) not in taken]
        taken.update(map(id, own))
        if own:
            found[name] = own
    return found


@torch.no_grad()
def layer_norms(layers: Mapping[str, Sequence[Tensor | None]]) -> dict[str, Float[Tensor, ""]]:
    r"""Return the Euclidean norm of each layer's tensors, taken as one vector, and of those of all layers as ``total``.

    .. math:: \Big(\sum_{t \in \text{layer}} \|t\|_F^2\Big)^{1/2}

    One fused call computes the norms of all tensors, in float32 at least, without waiting for the device.

    Args:
        layers: the tensors of each layer; None (a parameter without gradient) counts as zero.
    """
    tensors = [tensor for group in layers.values() for tensor in group if tensor is not None]
    if not tensors:
        return {name: torch.zeros(()) for name in (*layers, TOTAL)}
    wide = [tensor if tensor.dtype.itemsize >= 4 else tensor.float() for tensor in tensors]
    norms = iter(torch._foreach_norm(wide))
    dtype = torch.float64 if any(tensor.dtype == torch.float64 for tensor in wide) else torch.float32
    zero = torch.zeros((), dtype=dtype, device=tensors[0].device)
    by_layer = {}
    for name, group in layers.items():
        own = [next(norms).to(zero) for tensor in group if tensor is not None]
        by_layer[name] = torch.linalg.vector_norm(torch.stack(own)) if own else zero
    return {**by_layer, TOTAL: torch.linalg.vector_norm(torch.stack(list(by_layer.values())))}


class UpdateWatch:
    """Measures one optimizer step: call :meth:`before` it, before gradients are clipped, and :meth:`after` it.

    Between the two calls it holds a copy of the parameters.

    Args:
        model: the model whose parameters are watched.
    """

    def __init__(self, model: nn.Module):
        self._layers = layer_parameters(model)
        self._old: dict[str, list[Tensor]] = {}
        self._gradient: dict[str, Tensor] = {}

    @torch.no_grad()
    def before(self) -> None:
        """Measure the norms of the gradients, and copy the parameters."""
        self._gradient = layer_norms(_gradients(self._layers))
        self._old = {name: [p.detach().clone() for p in group] for name, group in self._layers.items()}

    @torch.no_grad()
    def after(self) -> dict[str, Float[Tensor, ""]]:
        """Return the quantities of the step, by name; the gradients must not have been reset since.

        Returns:
            ``<layer>/<quantity>`` with the quantities ``gradient_norm`` (before clipping), ``gradient_norm_clipped``,
            ``parameter_norm`` (before the step), ``update_norm``, and ``update_ratio``, the norm of the update over
            that of the parameters. Empty if :meth:`before` was not called.
        """
        if not self._old:
            return {}
        changes = {
            name: torch._foreach_sub([p.detach() for p in group], self._old[name])
            for name, group in self._layers.items()
        }
        parameters, updates = layer_norms(self._old), layer_norms(changes)
        quantities = {
            "gradient_norm": self._gradient,
            "gradient_norm_clipped": layer_norms(_gradients(self._layers)),
            "parameter_norm": parameters,
            "update_norm": updates,
            "update_ratio": {name: _ratio(updates[name], parameters[name]) for name in updates},
        }
        self._old = {}
        return {f"{layer}/{name}": norms[layer] for layer in updates for name, norms in quantities.items()}


def _gradients(layers: Mapping[str, Sequence[nn.Parameter]]) -> dict[str, list[Tensor | None]]:
    return {name: [p.grad for p in group] for name, group in layers.items()}


def _ratio(update: Tensor, size: Tensor) -> Tensor:
    """Return the update's norm over the parameters'; nan where these are all zero, as biases are at the start."""
    return torch.where(size > 0, update / size, torch.nan)
