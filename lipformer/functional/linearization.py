"""Products with a Jacobian that is never formed as a matrix, from one forward pass."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor


class Linearization:
    r"""The Jacobian J of ``function`` at ``x``, for any number of products J v and J' u.

    ``function`` is called once, so that its random numbers (dropout) are the same in all products. J v is the
    derivative of the linear map w -> J' w: it takes two backward passes, and needs no operation to have a forward-mode
    derivative.

    Args:
        function: maps one tensor to one tensor and treats each element of the batch (first dimension) independently;
            must be twice differentiable by autograd.
        x: (B, ...), floating point. If it requires a gradient, :meth:`gain` can be differentiated through it;
            otherwise a detached view of it is used.

    Attributes:
        y: ``function(x)``, (B, ...).
    """

    def __init__(self, function: Callable[[Tensor], Tensor], x: Float[Tensor, "B *shape"]):
        self.x = x if x.requires_grad else x.detach().requires_grad_()
        self.y = function(self.x)
        if not self.y.requires_grad:  # y does not depend on x: J = 0, for which autograd would raise
            self.y = self.y + 0 * self.x.sum()
        self._w = torch.zeros_like(self.y, requires_grad=True)
        (self._pulled,) = torch.autograd.grad(self.y, self.x, self._w, create_graph=True, materialize_grads=True)

    def jvp(self, v: Float[Tensor, "B *shape"]) -> Float[Tensor, "B *out"]:
        """J v, for each element of the batch."""
        return torch.autograd.grad(self._pulled, self._w, v, retain_graph=True, materialize_grads=True)[0]

    def vjp(self, u: Float[Tensor, "B *out"]) -> Float[Tensor, "B *shape"]:
        """J' u, for each element of the batch."""
        return torch.autograd.grad(self.y, self.x, u, retain_graph=True, materialize_grads=True)[0]

    def gain(self, u: Float[Tensor, "B *out"], v: Float[Tensor, "B *shape"]) -> Float[Tensor, " B"]:
        """<u, J v>, differentiable in ``x`` and all else that ``function`` depends on; u and v are constants."""
        (pulled,) = torch.autograd.grad(self.y, self.x, u, create_graph=True, materialize_grads=True)
        return (pulled * v).flatten(1).sum(1)
