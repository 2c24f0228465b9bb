"""The measurements by head, by layer, and from the embedding to the end of a model."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lipformer.bounds.empirical.local import LocalConstant, local_lipschitz
from lipformer.functional.explicit import explicit
from lipformer.functional.spectral import Norm


class Head(nn.Module):
    """What one head adds to an attention layer's output: the heads' outputs sum to the layer's.

    The others are silenced where the heads are joined, not in the weights, which a layer may use twice (to divide by
    its own bound).

    Args:
        layer: attention that calls its projection ``out``, which reads H = ``heads`` equal blocks of columns and has no
            bias.
        head: h, counted from 0.

    Raises:
        ValueError: the layer has no such projection, or no such head; in ``forward``, it does not call the projection
            (but computes with its weight, say).
    """

    def __init__(self, layer: nn.Module, head: int):
        super().__init__()
        heads, out = getattr(layer, "heads", 0), getattr(layer, "out", None)
        if not isinstance(out, nn.Linear) or out.bias is not None:
            raise ValueError(f"{type(layer).__name__} has no bias-free projection 'out' that joins its heads")
        if not 0 <= head < heads:
            raise ValueError(f"head {head} of {heads}")
        self.layer: nn.Module = layer
        self.head: int = head

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Attend with this head alone."""
        layer: Any = self.layer
        blocks = torch.zeros(layer.heads, 1, dtype=torch.bool, device=x.device)
        blocks[self.head] = True
        mask = blocks.repeat(1, layer.out.in_features // layer.heads).flatten()
        joined: list[Tensor] = []

        def silence(_: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
            joined.append(arguments[0])
            return (arguments[0] * mask,)

        handle = layer.out.register_forward_pre_hook(silence)
        try:
            with explicit(layer):  # the other path may join the heads elsewhere
                y = layer(x)
        finally:
            handle.remove()
        if not joined:
            raise ValueError(f"{type(layer).__name__} does not call 'out', so that its heads cannot be told apart")
        return y


class FromEmbedding(nn.Module):
    """A language model as a function of its embedded tokens, which can move where ids cannot.

    Args:
        model: it has ``trunk``, from embedded tokens to features, and ``head``, to logits.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N V"]:
        """Return the logits."""
        model: Any = self.model
        return model.head(model.trunk(x))


def head_constants(layer: nn.Module, x: Float[Tensor, "B N D"], p: Norm = 2, **options: Any) -> Float[Tensor, "B H"]:
    """Local constants of the :class:`Head` s of an attention layer.

    Args:
        layer: as for `Head`.
        x: its input.
        p: 2, ``math.inf`` or "mixed".
        options: of :func:`~lipformer.bounds.empirical.local_lipschitz`.
    """
    heads: Any = layer.heads
    return torch.stack([local_lipschitz(Head(layer, h), x, p, **options).value for h in range(heads)], dim=1)


def model_constants(
    model: nn.Module,
    ids: Int[Tensor, "B N"],
    p: Norm = 2,
    *,
    starts: Mapping[str, Tensor] | None = None,
    **options: Any,
) -> dict[str, LocalConstant]:
    """Local constants of a model's parts, each at the input that it really gets, and of the whole.

    Args:
        model: a ``CharTransformer``: ``embed``, ``blocks``, ``final_norm``, ``trunk``, ``head``.
        ids: sentences of equal length; padding would be measured too.
        p: 2, ``math.inf`` or "mixed".
        starts: directions to start from besides the random ones, by the names of the result; names may lack.
        options: of :func:`~lipformer.bounds.empirical.local_lipschitz`.

    Returns:
        By module name, in the order of the computation: ``blocks.0.attention``, a residual, then what it is made of
        (``blocks.0.attention.branch``, ``blocks.0.attention.norm``), and so on to ``final_norm``; at last ``trunk``
        (embedded tokens to features) and ``logits`` (embedded tokens to logits).
    """
    network: Any = model
    parts: dict[str, nn.Module] = {}
    for number, block in enumerate(network.blocks):
        for name, residual in block.named_children():
            parts[f"blocks.{number}.{name}"] = residual
            for child, part in residual.named_children():
                parts[f"blocks.{number}.{name}.{child}"] = part
    parts["final_norm"] = network.final_norm
    inputs: dict[str, Tensor] = {}

    def record(name: str) -> Any:
        return lambda _, arguments: inputs.__setitem__(name, arguments[0])

    handles = [part.register_forward_pre_hook(record(name)) for name, part in parts.items()]
    try:
        with torch.no_grad():
            embedded = network.embed(ids)
            network.trunk(embedded)
    finally:
        for handle in handles:
            handle.remove()
    functions: dict[str, tuple[Any, Tensor]] = {
        **{name: (part, inputs[name]) for name, part in parts.items() if name in inputs},
        "trunk": (network.trunk, embedded),
        "logits": (FromEmbedding(model), embedded),
    }
    starts = {} if starts is None else starts
    return {name: local_lipschitz(f, x, p, start=starts.get(name), **options) for name, (f, x) in functions.items()}
