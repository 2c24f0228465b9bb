"""Jacobians of layers on (N, D) inputs and their norms, exact where that is possible."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


def jacobian(layer: nn.Module | Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return d y / d x of (..., N, D) inputs as (..., N, D, N, D), differentiable (the explicit path is used)."""

    def single(tokens: Tensor) -> Tensor:
        return apply(layer, tokens[None])[0]

    derivative = torch.func.jacrev(single)
    for _ in range(x.dim() - 2):
        derivative = torch.func.vmap(derivative)
    return derivative(x)


def apply(layer: nn.Module | Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Call a layer by its explicit path where it has two."""
    return layer(x, fused=False) if hasattr(layer, "fused") else layer(x)


def norm_2(jac: Tensor) -> Tensor:
    """Largest singular value."""
    return torch.linalg.matrix_norm(jac.flatten(-4, -3).flatten(-2), 2)


def norm_inf(jac: Tensor) -> Tensor:
    """Largest absolute row sum."""
    return jac.abs().sum((-2, -1)).amax((-2, -1))


def norm_mixed(jac: Tensor, restarts: int = 8, iterations: int = 30) -> Tensor:
    """Lower bound (in practice tight) on the operator norm for max_i |x_i|_2, by alternating maximisation.

    For each output token i: max over unit u of sum_j |J_ij' u|_2. Given u the best input is
    x_j = J_ij' u / |J_ij' u|; given x the best u points along sum_j J_ij x_j.
    """
    blocks = jac.movedim(-2, -3)  # (..., N, N, D, D): output token, input token, output, input feature
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(restarts, *blocks.shape[:-3], blocks.shape[-2], generator=generator, dtype=jac.dtype)
    fixed = blocks.detach()
    for _ in range(iterations):
        u = u / u.norm(dim=-1, keepdim=True).clamp_min(1e-300)
        pulled = torch.einsum("...ijab,r...ia->r...ijb", fixed, u)
        x = pulled / pulled.norm(dim=-1, keepdim=True).clamp_min(1e-300)
        u = torch.einsum("...ijab,r...ijb->r...ia", fixed, x)
    u = u / u.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    gains = torch.einsum("...ijab,r...ia->r...ijb", blocks, u).norm(dim=-1).sum(-1)
    return gains.amax(-1).amax(0)


def block_row_sum(jac: Tensor) -> Tensor:
    """Upper bound on the mixed norm, max_i sum_j |J_ij|_2; what the proof bounds for a single head."""
    return torch.linalg.matrix_norm(jac.movedim(-2, -3), 2).sum(-1).amax(-1)


NORMS = {2: norm_2, math.inf: norm_inf, "mixed": norm_mixed}
