"""Local constants of single heads, of the layers of a model, and of the whole model."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lipformer.bounds.empirical.local import LocalConstant, local_lipschitz
from lipformer.functional.spectral import Norm
from lipformer.modules.contexts import explicit
from lipformer.modules.contracts import HasTrunk, joined_heads
from lipformer.modules.walk import UNEMBEDDING, walk, watching


class Head(nn.Module):
    """The contribution of one head to the output of an attention layer; the contributions of all heads add up to it.

    The other heads are set to zero where the heads are joined, not in the weights, because a layer may use the weights
    twice (to divide by its own bound).

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
        heads, _ = _joined_heads(layer)
        if not 0 <= head < heads:
            raise ValueError(f"head {head} of {heads}")
        self.layer = layer
        self.head = head

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Attend with this head alone."""
        heads, out = _joined_heads(self.layer)
        blocks = torch.zeros(heads, 1, dtype=torch.bool, device=x.device)
        blocks[self.head] = True
        mask = blocks.repeat(1, out.in_features // heads).flatten()
        joined: list[Tensor] = []

        def silence(_: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
            joined.append(arguments[0])
            return (arguments[0] * mask,)

        handle = out.register_forward_pre_hook(silence)
        try:
            with explicit(self.layer):  # the other path may join the heads elsewhere
                y = self.layer(x)
        finally:
            handle.remove()
        if not joined:
            name = type(self.layer).__name__
            raise ValueError(f"{name} does not call 'out', so that its heads cannot be told apart")
        return y


def _joined_heads(layer: nn.Module) -> tuple[int, nn.Linear]:
    found = joined_heads(layer)
    if found is None:
        raise ValueError(f"{type(layer).__name__} has no bias-free projection 'out' that joins its heads")
    return found


class FromEmbedding(nn.Module):
    """A language model as a function of its embedded tokens, which can move where ids cannot.

    Args:
        model: it has ``trunk``, from embedded tokens to features, and ``unembedding``, to logits.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N V"]:
        """Return the logits."""
        assert isinstance(self.model, HasTrunk)
        return self.model.get_submodule(UNEMBEDDING)(self.model.trunk(x))


def head_constants(layer: nn.Module, x: Float[Tensor, "B N D"], p: Norm = 2, **options: Any) -> Float[Tensor, "B H"]:
    """Local constants of the :class:`Head` s of an attention layer.

    Args:
        layer: as for `Head`.
        x: its input.
        p: 2, ``math.inf`` or "mixed".
        options: of :func:`~lipformer.bounds.empirical.local_lipschitz`.
    """
    heads, _ = _joined_heads(layer)
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
        model: has ``embed``, ``trunk`` and ``unembedding``, as a ``CharTransformer`` has; what lies between is measured
            as far as `lipformer.modules.walk` finds layers there.
        ids: sentences of equal length; padding would be measured too.
        p: 2, ``math.inf`` or "mixed".
        starts: directions to start from besides the random ones, by the names of the result; some may be missing.
        options: of :func:`~lipformer.bounds.empirical.local_lipschitz`.

    Returns:
        By module name, in the order of the computation: ``blocks.0.attention``, a residual, then what it is made of
        (``blocks.0.attention.branch``, ``blocks.0.attention.norm``), and so on to ``final_norm``; at last ``trunk``
        (embedded tokens to features) and ``logits`` (embedded tokens to logits).

    Raises:
        TypeError: the model has no ``embed`` and ``trunk``.
    """
    if not isinstance(model, HasTrunk):
        raise TypeError(f"{type(model).__name__} has no embed and trunk, between which constants are measured")
    places = [place for place in walk(model) if place.role in MEASURED]
    with torch.no_grad(), watching(places) as passed:
        embedded = model.embed(ids)
        model.trunk(embedded)
    functions: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
        **{place.name: (place.module, passed[place.name].x) for place in places if place.name in passed},
        "trunk": (model.trunk, embedded),
        "logits": (FromEmbedding(model), embedded),
    }
    starts = {} if starts is None else starts
    return {name: local_lipschitz(f, x, p, start=starts.get(name), **options) for name, (f, x) in functions.items()}


MEASURED = ("layer", "residual", "branch", "norm", "part", "stack", "final_norm")
"""Roles of the places that have a local constant: all that map tokens to tokens, except whole blocks."""
