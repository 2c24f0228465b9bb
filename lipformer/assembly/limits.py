"""A limit to the memory that the building of a model from a file takes: the file's sizes are not believed."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

SPARE = 2**28
"""Elements that a model may have besides its weights: tables, masks, and what its initialisation computes."""


class TooLargeError(ValueError):
    """A model would be far larger than the weights in its file."""


@contextlib.contextmanager
def limited_to(weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Refuse to make tensors that are far larger, each or together, than these weights.

    Without it, sizes in a configuration that do not belong to the weights would take all memory before the weights are
    compared with the model's.

    Args:
        weights: the weights in a file, which are no larger than the file.

    Raises:
        TooLargeError: such a tensor would be made; it is not.
    """
    largest = max((weight.numel() for weight in weights.values()), default=0)
    together = sum(weight.numel() for weight in weights.values())
    with _Limit(2 * largest + SPARE, 16 * together + 4 * SPARE):
        yield


class _Limit(TorchDispatchMode):
    """Counts the elements of tensors before they are made.

    Args:
        each: the most elements of one tensor.
        together: the most elements of all tensors, also of those that have gone.
    """

    def __init__(self, each: int, together: int):
        super().__init__()
        self.each, self.left = each, together

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation of torch if its result is not too large."""
        kwargs = kwargs or {}
        shapes = [argument.shape for argument in args if isinstance(argument, torch.Tensor)]
        if shapes:
            elements = _joint_elements(shapes)
        else:
            # One that makes a tensor from numbers: on the device `meta` it computes the shape alone.
            elements = _elements(func(*args, **{**kwargs, "device": "meta"})) if "device" in kwargs else 0
        self.left -= 0 if shapes else elements
        if elements > self.each or self.left < 0:
            raise TooLargeError(
                f"the model would be far larger than its weights, with tensors of {elements:,} elements"
            )
        return func(*args, **kwargs)


def _elements(made: Any) -> int:
    return made.numel() if isinstance(made, torch.Tensor) else 0


def _joint_elements(shapes: list[torch.Size]) -> int:
    """Return the elements of tensors of these shapes that are spread over each other; 0 if they cannot be."""
    try:
        return math.prod(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        return 0
