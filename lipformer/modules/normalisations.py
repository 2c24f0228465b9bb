"""Normalisation over the features of each token."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lipformer import theorems
from lipformer.functional.spectral import Norm, parse_norm
from lipformer.options.parts import ActNormOptions, NormOptions

SMALLEST_STD = 1e-6
"""Smallest deviation of a channel in the first batch, in units of its mean if that exceeds 1.

A channel below it counts as empty: only rounding would be amplified.
"""


class LayerNorm(nn.LayerNorm):
    r"""Zero mean and unit variance over the features of a token, then a learned scale and shift.

    .. math:: y = \gamma \odot \frac{x - \mu(x)}{\sqrt{\sigma^2(x) + \epsilon}} + \beta

    Shape: ``(B, N, D) -> (B, N, D)``.

    Args:
        width: features of a token, D.
        eps: as in :class:`~lipformer.options.parts.NormOptions`.
        bias: whether there is a shift.

    Raises:
        ValueError: ``eps`` is out of its range.

    References: Ba, Kiros, Hinton 2016, arXiv 1607.06450, eq. 4.
    """

    caveat = "max|gamma| / sqrt(eps), reached by nearly constant tokens"

    def __init__(self, width: int, eps: float = NormOptions.eps, *, bias: bool = True):
        NormOptions.check(eps=eps)
        super().__init__(width, eps=eps, bias=bias)

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """`theorems.layer_norm_bound`; the length does not matter."""
        return theorems.layer_norm_bound(self.weight, self.eps, p)

    def output_radius(self) -> Float[Tensor, ""]:
        """Largest Euclidean norm of an output token, at most sqrt(D) max|gamma| + |beta|."""
        return _normalised_radius(self.weight, self.bias)


class RMSNorm(nn.RMSNorm):
    r"""Unit root mean square over the features of a token, then a learned scale.

    .. math:: y = \gamma \odot \frac{x}{\sqrt{\tfrac1D \lVert x \rVert_2^2 + \epsilon}}

    Shape: ``(B, N, D) -> (B, N, D)``.

    Args:
        width: features of a token, D.
        eps: as in :class:`~lipformer.options.parts.NormOptions`.

    Raises:
        ValueError: ``eps`` is out of its range.

    References: Zhang, Sennrich 2019, arXiv 1910.07467, eq. 4.
    """

    caveat = "max|gamma| / sqrt(eps), reached by tokens near zero"

    def __init__(self, width: int, eps: float = NormOptions.eps):
        NormOptions.check(eps=eps)
        super().__init__(width, eps=eps)

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """`theorems.rms_norm_bound`; the length does not matter."""
        assert self.eps is not None
        return theorems.rms_norm_bound(self.weight, self.eps, p)

    def output_radius(self) -> Float[Tensor, ""]:
        """Largest Euclidean norm of an output token, at most sqrt(D) max|gamma|."""
        return _normalised_radius(self.weight)


class CenterNorm(nn.Module):
    r"""Zero mean over the features of a token, without a division that would amplify small tokens.

    .. math:: y = \gamma \odot \frac{D}{D-1} (x - \mu(x)) + \beta

    Shape: ``(B, N, D) -> (B, N, D)``.

    Args:
        width: features of a token, D, at least 2.

    Raises:
        ValueError: D < 2.

    References: Qi et al. 2023 (LipsFormer), arXiv 2304.09856, sec. 3.
    """

    caveat = ""

    def __init__(self, width: int):
        super().__init__()
        if width < 2:
            raise ValueError(f"CenterNorm needs at least 2 features, not {width}")
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Center, scale and shift each token."""
        width = x.shape[-1]
        return self.weight * (x - x.mean(-1, keepdim=True)) * (width / (width - 1)) + self.bias

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """`theorems.center_norm_bound`; the length does not matter."""
        return theorems.center_norm_bound(self.weight, p)

    def output_radius(self) -> Float[Tensor, ""]:
        """Infinite: a linear map."""
        return _unbounded(self.weight)


class ActNorm(nn.Module):
    r"""A learned scale and shift of each feature that start by normalising the first training batch.

    .. math:: y = s \odot x + \beta, \qquad s = e^{\min(\ell,\, \log s_{max})}

    The first batch seen in train mode sets scale and shift so that each feature has zero mean and unit variance over
    its tokens, padding among them (of all ranks, where training is distributed); never in eval mode, and never again:
    ``initialised`` is in the state dict. A batch that is not finite sets nothing. Unlike the other normalisations it is
    linear and a bijection, and it amplifies a feature that is small throughout, such as a contractive branch's output
    in a channel that is otherwise blank.

    Shape: ``(B, N, D) -> (B, N, D)``.

    Args:
        width: features of a token, D.
        max_scale: largest s, which a certificate carries; as in :class:`~lipformer.options.parts.ActNormOptions`.

    Raises:
        ValueError: ``max_scale`` is out of its range.

    References: Kingma, Dhariwal 2018 (Glow), arXiv 1807.03039, sec. 3.1; the limit is ours.
    """

    def __init__(self, width: int, *, max_scale: float | None = ActNormOptions.max_scale):
        super().__init__()
        ActNormOptions.check(max_scale=max_scale)
        self.max_scale = max_scale
        self.log_scale = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.initialised: Bool[Tensor, ""]
        self.register_buffer("initialised", torch.tensor(False))

    @property
    def caveat(self) -> str:
        """Return what a reader of the bound should know."""
        return "" if self.initialised else "not yet set by a training batch"

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Scale and shift; in train mode, the first time, after setting both from ``x``."""
        if self.training and not self.initialised:
            self._initialise(x)
        return x * self.scale() + self.bias

    def scale(self) -> Float[Tensor, " D"]:
        """The factor of each feature, positive."""
        return self._limited_log_scale().exp()

    def _limited_log_scale(self) -> Tensor:
        return self.log_scale if self.max_scale is None else self.log_scale.clamp_max(math.log(self.max_scale))

    @torch.no_grad()
    def _initialise(self, x: Tensor) -> None:
        tokens = x.detach().flatten(0, -2).double()
        count = _sum_over_ranks(torch.ones_like(tokens).sum(0))
        mean = _sum_over_ranks(tokens.sum(0)) / count
        std = (_sum_over_ranks((tokens - mean).square().sum(0)) / count).sqrt()
        if not std.isfinite().all():
            return
        filled = std > SMALLEST_STD * mean.abs().clamp_min(1)
        self.log_scale.copy_(torch.where(filled, -std.clamp_min(SMALLEST_STD).log(), 0.0))
        self.log_scale.copy_(self._limited_log_scale())  # above the limit its gradient is zero
        self.bias.copy_(-mean * self.scale())
        self.initialised.fill_(True)

    def invert(self, y: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Return the x of a y.

        Raises:
            RuntimeError: in train mode before the first batch, which will set scale and shift.
        """
        self._require_set()
        return (y - self.bias) / self.scale()

    def log_det(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, " B"]:
        """Return log|det dy/dx| of each sequence.

        Raises:
            RuntimeError: in train mode before the first batch, which will set scale and shift.
        """
        self._require_set()
        return (x.shape[1] * self._limited_log_scale().sum()).expand(len(x))

    def _require_set(self) -> None:
        if self.training and not self.initialised:
            raise RuntimeError("ActNorm is not set yet: run a training batch first, or eval() to take it as it is")

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """The largest scale, `theorems.act_norm_bound`; the length does not matter."""
        return theorems.act_norm_bound(self.scale(), p)

    def output_radius(self) -> Float[Tensor, ""]:
        """Infinite: a linear map."""
        return _unbounded(self.log_scale)

    def extra_repr(self) -> str:
        """Show the limit."""
        return f"{len(self.log_scale)}, max_scale={self.max_scale}"


class NoNorm(nn.Identity):
    """The identity: a block without normalisation.

    Shape: ``(B, N, D) -> (B, N, D)``.
    """

    caveat = ""

    def invert(self, y: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Return ``y``."""
        return y

    def log_det(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, " B"]:
        """Return zeros."""
        return x.new_zeros(len(x))

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """One."""
        parse_norm(p)
        return torch.ones((), dtype=torch.float64)

    def output_radius(self) -> Float[Tensor, ""]:
        """Infinite."""
        return torch.tensor(math.inf, dtype=torch.float64)


def _normalised_radius(weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the radius of tokens that have a Euclidean norm of at most sqrt(D) before scale and shift."""
    radius = math.sqrt(len(weight)) * weight.double().abs().amax()
    return radius if bias is None else radius + torch.linalg.vector_norm(bias.double())


def _sum_over_ranks(share: Tensor) -> Tensor:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(share)
    return share


def _unbounded(weight: Tensor) -> Tensor:
    return torch.tensor(math.inf, dtype=torch.float64, device=weight.device)
