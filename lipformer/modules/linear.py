"""The parametrisation of every linear map of the blocks: none, or sigma-reparametrisation."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lipformer.functional.precision import at_least_float32


def dense(linear: nn.Linear) -> None:
    """Leave the linear map as it is."""


def sigma_reparam(linear: nn.Linear) -> None:
    r"""Make the weight of a linear map :math:`\hat W = \gamma W / \sigma(W)`, in place, without changing its value.

    See :class:`SigmaReparam`. ``linear.weight`` is from then on computed; its parameters are
    ``linear.parametrizations.weight.original`` (W) and ``linear.parametrizations.weight[0].gamma``.

    Raises:
        ValueError: the weight is zero or not finite, so that it has no direction.

    References: Zhai et al. 2023, arXiv 2303.06296.
    """
    parametrize.register_parametrization(linear, "weight", SigmaReparam(linear.weight.detach()))


class SigmaReparam(nn.Module):
    r"""A weight divided by its spectral norm, times a learned scalar.

    .. math:: \hat W = \frac{\gamma}{\sigma} W, \qquad \sigma = \|W^\top u\|_2

    The unit vector u, a buffer, follows the first left singular vector by one step of power iteration each time
    :meth:`advance` is called. So sigma approaches the 2-norm of W from below, that of W-hat is gamma only nearly,
    and a certificate takes the exact norm of W-hat itself. Reading the weight changes nothing. To autograd u is a
    constant; the derivative of sigma is :math:`u v^\top` with :math:`v = W^\top u / \sigma`, the same as of
    :math:`u^\top W v` with both constant. Computed at least in float32, whatever autocast says.

    Args:
        weight: the initial W; u is its first left singular vector and gamma its 2-norm.

    Raises:
        ValueError: the weight is zero or not finite.
    """

    def __init__(self, weight: Float[Tensor, "out in"]):
        super().__init__()
        weight = at_least_float32(weight)
        if not (weight.isfinite().all() and weight.any()):
            raise ValueError("a weight that is zero or not finite has no direction and cannot be sigma-reparametrised")
        left, sizes, _ = torch.linalg.svd(weight, full_matrices=False)
        self.u: Tensor
        self.register_buffer("u", left[:, 0].clone())
        self.gamma = nn.Parameter(sizes[0].clone())

    def forward(self, weight: Float[Tensor, "out in"]) -> Float[Tensor, "out in"]:
        """Return W-hat, in the precision of W."""
        with torch.autocast(weight.device.type, enabled=False):
            wide = at_least_float32(weight)
            sigma = torch.linalg.vector_norm(wide.mT @ self._direction(wide))
            return (wide * (self.gamma.to(wide.dtype) / torch.where(sigma == 0, 1, sigma))).to(weight.dtype)

    @torch.no_grad()
    def advance(self, weight: Float[Tensor, "out in"]) -> None:
        """Take one step of power iteration, u <- W W^T u / |W W^T u|."""
        wide = at_least_float32(weight)
        right = nn.functional.normalize(wide.mT @ self._direction(wide), dim=0)
        left = wide @ right
        # A weight of zeros, or u in the null space of W^T, leaves u as it is.
        self.u.copy_(torch.where(left.any(), nn.functional.normalize(left, dim=0), self.u))

    def _direction(self, like: Tensor) -> Tensor:
        """Return u as a unit vector also where it was rounded to half precision."""
        return nn.functional.normalize(self.u.to(like.dtype), dim=0)


@contextmanager
def one_weight(model: nn.Module) -> Iterator[None]:
    """Compute each parametrised weight once for the whole forward pass of ``model``.

    In train mode u of every :class:`SigmaReparam` in it is advanced first, by exactly one step. Without
    parametrised weights the context does nothing.
    """
    linears: list[Any] = [module for module in model.modules() if parametrize.is_parametrized(module, "weight")]
    if not linears:
        yield
        return
    if model.training:
        for linear in linears:
            for part in linear.parametrizations.weight:
                if isinstance(part, SigmaReparam):
                    part.advance(linear.parametrizations.weight.original)
    with parametrize.cached():
        yield
