r"""Radii of embedded tokens within which predictions do not change: certified from below, attacked from above.

Legend: z_a the logits of a token, w_a the rows of the linear unembedding, a the predicted symbol, b any other; L the
Lipschitz constant of the trunk in the norm p; p' the norm dual to a token's, 1 for p = inf, else 2.
"""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lipformer.functional.sequence_norms import steepest_point
from lipformer.functional.spectral import Norm, parse_norm

ROUNDING = 2.0**-30
"""Subtracted from each margin, relative to the token's largest logit, to allow for rounding in the forward pass.

An assumption, not a theorem: forward passes in float32, whose unit is 2^29 times as large, err by about 1e-6 to 1e-5 of
the largest logit, those in float64 by that much less.
"""


def certified_radii(
    logits: Float[Tensor, "*batch V"], unembedding: Float[Tensor, "V D"], lipschitz: float, p: Norm
) -> Float[Tensor, "*batch"]:
    r"""Radius within which no movement of the embedded tokens changes a token's most likely symbol.

    .. math:: r = \min_{b \ne a} \frac{z_a - z_b}{\|w_a - w_b\|_{p'}\, L}

    If the sequence moves by less than r in the norm p, the token's features move by less than L r in its own norm, and
    each difference of two logits by less than their gap. (For "mixed": *every* token may move by less than r.) No two
    rows differ by more than sqrt(2) times the 2-norm of the unembedding, and most by less.

    Args:
        logits: z, in float64.
        unembedding: the w, in ``nn.Linear`` layout.
        lipschitz: L, an upper bound.
        p: 2, ``math.inf`` or "mixed".

    Returns:
        float64; 0 where two symbols tie or L is infinite, inf where nothing can change the prediction.

    Raises:
        TypeError: logits that are not float64: their rounding would exceed the allowance for it.

    References: Tsuzuku, Sato, Sugiyama 2018 (Lipschitz-margin training), arXiv 1802.04034, where it is sqrt(2) times
    the norm of the whole network.
    """
    if logits.dtype != torch.float64:
        raise TypeError(f"radii are certified from float64 logits, not {logits.dtype}")
    rows, dual = unembedding.double(), 1.0 if parse_norm(p) == math.inf else 2.0
    size = rows.abs().amax()
    size = torch.where(size > 0, size, 1.0)  # divided out, for squares of small differences must not vanish
    # Not by |a|^2 + |b|^2 - 2ab, whose rounding can be larger than a distance. The factor covers that of a sum.
    distances = torch.cdist(rows / size, rows / size, p=dual, compute_mode="donot_use_mm_for_euclid_dist")
    distances = distances * (size * (1 + 2.0**-40))
    best = logits.argmax(-1, keepdim=True)
    room = ROUNDING * logits.abs().amax(-1, keepdim=True)
    gaps = (logits.gather(-1, best) - logits - room).clamp_min(0)
    # Rows that are equal differ by a constant: 0 / 0 is a tie, anything else can never change.
    radii = (gaps / distances[best.squeeze(-1)]).nan_to_num(nan=0.0, posinf=math.inf)
    radii = radii.scatter(-1, best, math.inf).amin(-1)
    if math.isinf(lipschitz):
        return torch.zeros_like(radii)
    return torch.where(radii > 0, radii / lipschitz, 0.0)  # those of a constant trunk are infinite


def attacked_radii(
    function: Callable[[Tensor], Tensor],
    x: Float[Tensor, "B N D"],
    radii: Sequence[float],
    p: Norm,
    *,
    attacked: Bool[Tensor, "B N"] | None = None,
    steps: int = 10,
) -> Float[Tensor, "B N"]:
    r"""Smallest of some radii at which an attack changes each token's most likely symbol: no radius is larger.

    Conditional gradient on the ball of each radius r, against all tokens of a sequence at once,

    .. math:: \delta \leftarrow (1 - \gamma_t)\, \delta + \gamma_t\, r \arg\max_{\|v\|_p \le 1} \langle v, g\rangle,
              \qquad g = \nabla_\delta \sum_i \max_{b \ne a} (z_{ib} - z_{ia}), \quad \gamma_t = 2 / (t + 2)

    over the tokens i that still resist.

    Args:
        function: from embedded tokens to logits, (B, N, V); sequences must not influence each other.
        x: embedded tokens.
        radii: increasing.
        p: norm of the ball, 2, ``math.inf`` or "mixed".
        attacked: tokens to attack; None for all.
        steps: of each radius.

    Returns:
        One of `radii`, or inf where the attack failed at all of them (or the token was not attacked).

    References: Frank, Wolfe 1956; as an attack, Chen et al. 2020, arXiv 1811.10828.
    """
    resisting = torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device) if attacked is None else attacked
    with torch.no_grad():
        best = function(x).argmax(-1, keepdim=True)
    found = torch.full(x.shape[:-1], math.inf, dtype=torch.float64, device=x.device)
    for radius in radii:
        delta = torch.zeros_like(x)
        for step in range(steps + 1):
            delta.requires_grad_(True)
            with torch.enable_grad():
                logits = function(x + delta)
                others = logits.scatter(-1, best, -math.inf).amax(-1)
                lead = (others - logits.gather(-1, best).squeeze(-1))[resisting].sum()
            changed = resisting & (logits.argmax(-1) != best.squeeze(-1))
            found[changed] = radius
            resisting = resisting & ~changed
            if step == steps or not resisting.any():
                break
            (gradient,) = torch.autograd.grad(lead, delta)
            share = 2 / (step + 2)
            delta = (1 - share) * delta.detach() + share * radius * steepest_point(gradient, p)
    return found
