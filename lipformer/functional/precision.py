"""Computation in float32 at least, under half precision and autocast."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Cast half-precision tensors up to float32; leave float32 and float64 alone."""
    return tensor.float() if tensor.dtype in HALF else tensor


def working_dtype(x: Tensor) -> torch.dtype:
    """Return the precision in which ``x W`` is computed, which autocast may lower."""
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def linear_float32(x: Float[Tensor, "*batch C"], weight: Float[Tensor, "E C"]) -> Float[Tensor, "*batch E"]:
    """Apply an ``nn.Linear`` weight in float32 at least, also under autocast, after rounding it as autocast does.

    It is for a part of a projection that is added to the rest later: both parts then use the same rounded weight, and
    are one linear map.
    """
    rounded = weight.to(working_dtype(x))
    with torch.autocast(x.device.type, enabled=False):
        return F.linear(at_least_float32(x), at_least_float32(rounded))
