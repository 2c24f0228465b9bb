"""Residuals: how a branch joins the skip connection, and where the normalisation is."""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipformer.functional.spectral import Norm
from lipformer.modules.contexts import constant_weights
from lipformer.modules.contracts import (
    Contractive,
    InvertibleNormalisation,
    LipschitzOnBall,
    lipschitz_bound,
    output_radius,
)
from lipformer.modules.fixed_point import Solution, solve
from lipformer.modules.log_det import log_det
from lipformer.options.parts import LayeredResidualOptions
from lipformer.theorems.compose import compose, convex, residual


class Residual(nn.Module):
    """Base class of a branch f with a skip connection and a normalisation, which the kinds combine differently.

    Args:
        branch: f, ``(B, N, D) -> (B, N, D)``.
        norm: makes the normalisation of a given width.
        width: features of a token, D.
    """

    normalises_output = True
    """Whether the output is normalised; if not, the model adds a normalisation after the last block."""
    caveat = ""
    branch_scale: float | Tensor = 1.0
    """The factor of the branch over the factor of the skip connection."""

    def __init__(self, branch: nn.Module, norm: Callable[[int], nn.Module], width: int):
        super().__init__()
        self.branch = branch
        self.norm = norm(width)


class PostNorm(Residual):
    r"""The normalisation after the sum, as in the original Transformer and in Kim et al. 2021.

    .. math:: y = \mathrm{norm}(x + f(x))

    Arguments as for :class:`Residual`.

    References: Vaswani et al. 2017, arXiv 1706.03762, sec. 3.1.
    """

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Add the branch, then normalise."""
        return self.norm(x + self.branch(x))

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """Lip(norm) (1 + Lip(f))."""
        return compose(residual(lipschitz_bound(self.branch, p, length)), lipschitz_bound(self.norm, p, length))


class PreNorm(Residual):
    r"""The normalisation inside the branch; the skip stays untouched from end to end.

    .. math:: y = x + f(\mathrm{norm}(x))

    Arguments as for :class:`Residual`.

    References: Xiong et al. 2020, arXiv 2002.04745, fig. 1b.
    """

    normalises_output = False

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Normalise, apply the branch, then add it."""
        return x + self.branch(self.norm(x))

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """1 + Lip(f) Lip(norm), f on the ball that the normalisation maps into where it is not Lipschitz everywhere."""
        branch = lipschitz_bound(self.branch, p, length)
        if branch.isinf() and isinstance(self.branch, LipschitzOnBall):
            radius = output_radius(self.norm)
            if radius.isfinite():
                branch = self.branch.lipschitz_bound_on_ball(radius, p, length)
        return residual(compose(lipschitz_bound(self.norm, p, length), branch))


class InvertibleResidual(PostNorm):
    r"""A contractive branch on the skip connection, then an invertible normalisation: a bijection.

    .. math:: y = \mathrm{norm}(x + f(x)), \qquad \mathrm{Lip} f < 1

    Arguments as for :class:`Residual`.

    Raises:
        ValueError: the branch states no contraction, or the normalisation cannot be inverted.

    References: Behrmann et al. 2019 (i-ResNet), arXiv 1811.00995, Theorem 1.
    """

    def __init__(self, branch: nn.Module, norm: Callable[[int], nn.Module], width: int):
        super().__init__(branch, norm, width)
        if obstacle := self.inversion_obstacle():
            raise ValueError(obstacle)

    def inversion_obstacle(self) -> str:
        """Return which part prevents an inverse; "" if none does, without which the residual cannot be built."""
        if not isinstance(self.branch, Contractive):
            return (
                f"an invertible residual needs a contractive branch, which {type(self.branch).__name__} is not: take "
                "attention=contractive_l2, contractive_l2_decoupled or contractive_l2_blocks and "
                "feedforward=contractive or none"
            )
        if not isinstance(self.norm, InvertibleNormalisation):
            return (
                f"an invertible residual needs an invertible normalisation, which {type(self.norm).__name__} is not: "
                "take norm=act_norm or none"
            )
        return ""

    def invert(self, y: Float[Tensor, "B N D"], **options: Any) -> Solution:
        """Return the x of a y, by the iteration z <- norm^-1(y) - f(z).

        Args:
            y: an output.
            options: of :func:`~lipformer.modules.fixed_point.solve`.
        """
        with constant_weights(self.branch):
            return solve(self.branch, self._invertible_norm().invert(y), **options)

    def log_det(self, x: Float[Tensor, "B N D"], **options: Any) -> Float[Tensor, " B"]:
        """Return log|det dy/dx| of each sequence.

        Args:
            x: an input.
            options: of :func:`~lipformer.modules.log_det.log_det`.
        """
        return log_det(self.branch, x, **options) + self._invertible_norm().log_det(x)

    def _invertible_norm(self) -> InvertibleNormalisation:
        if not isinstance(self.norm, InvertibleNormalisation):  # it was replaced after the residual was built
            raise TypeError(self.inversion_obstacle())
        return self.norm


class WeightedResidual(Residual):
    r"""A branch with a learned weight for each channel, small at first, then the normalisation.

    .. math:: y = \mathrm{norm}(x + \alpha \odot f(x)), \qquad \alpha = 1/L \text{ at first}

    Args:
        branch: f, ``(B, N, D) -> (B, N, D)``.
        norm: makes the normalisation of a given width.
        width: features of a token, D.
        layers: as in :class:`~lipformer.options.parts.LayeredResidualOptions`.

    Raises:
        ValueError: ``layers`` is out of its range.

    References: Qi et al. 2023 (LipsFormer), arXiv 2304.09856, sec. 3, with norm=center_norm.
    """

    def __init__(self, branch: nn.Module, norm: Callable[[int], nn.Module], width: int, *, layers: int):
        super().__init__(branch, norm, width)
        LayeredResidualOptions.check(layers=layers)
        self.alpha = nn.Parameter(torch.full((width,), 1 / layers))

    @property
    def branch_scale(self) -> Float[Tensor, " D"]:  # type: ignore[override]
        """alpha."""
        return self.alpha

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Add the weighted branch, then normalise."""
        return self.norm(x + self.alpha * self.branch(x))

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """Lip(norm) (1 + max|alpha| Lip(f))."""
        branch = compose(lipschitz_bound(self.branch, p, length), self.alpha.double().abs().amax())
        return compose(residual(branch), lipschitz_bound(self.norm, p, length))


class ConvexResidual(Residual):
    r"""A learned mean of the skip connection and the branch, then the normalisation.

    .. math:: y = \mathrm{norm}((1 - a)\, x + a f(x)), \qquad a \in (0, 1),\quad a = 1/(2L) \text{ at first}

    Its constant is 1 where those of f and of the normalisation are, so a trunk of such blocks does not amplify with
    depth.

    Args:
        branch: f, ``(B, N, D) -> (B, N, D)``.
        norm: makes the normalisation of a given width.
        width: features of a token, D.
        layers: as in :class:`~lipformer.options.parts.LayeredResidualOptions`.

    Raises:
        ValueError: ``layers`` is out of its range.

    References: Newhouse et al. 2025, arXiv 2507.13338, with a fixed there.
    """

    def __init__(self, branch: nn.Module, norm: Callable[[int], nn.Module], width: int, *, layers: int):
        super().__init__(branch, norm, width)
        LayeredResidualOptions.check(layers=layers)
        share = 1 / (2 * layers)
        self.logit = nn.Parameter(torch.tensor(math.log(share / (1 - share))))

    @property
    def branch_scale(self) -> Float[Tensor, ""]:  # type: ignore[override]
        """a / (1 - a)."""
        return self.logit.exp()

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Take the mean of token and branch, then normalise."""
        return self.norm(x + self.logit.sigmoid() * (self.branch(x) - x))

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """Lip(norm) (1 - a + a Lip(f))."""
        share, branch = self.logit.double().sigmoid(), lipschitz_bound(self.branch, p, length)
        mean = math.inf if share.isnan() else convex(share, 1.0, branch)
        return compose(mean, lipschitz_bound(self.norm, p, length))
