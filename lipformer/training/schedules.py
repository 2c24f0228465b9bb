"""Learning-rate schedules: the factor of the learning rate as a function of the optimizer step, counted from 0."""

import math

from lipformer.options.optimisation import ConstantOptions, CosineScheduleOptions, InverseSqrtOptions


def _warmup(step: int, warmup_steps: int) -> float:
    """Return a factor that rises linearly to 1 over the first `warmup_steps` steps."""
    return min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0


def constant(step: int, *, warmup_steps: int = ConstantOptions.warmup_steps) -> float:
    """Return 1 after a linear warm-up; options as in `ConstantOptions`."""
    ConstantOptions.check(warmup_steps=warmup_steps)
    return _warmup(step, warmup_steps)


def inverse_sqrt(step: int, *, warmup_steps: int = InverseSqrtOptions.warmup_steps) -> float:
    r"""Return :math:`\sqrt{w / t}` from step t = w on, after a linear warm-up of w steps (`InverseSqrtOptions`).

    References: Vaswani et al. 2017, arXiv 1706.03762, eq. 3, scaled so that the peak is 1.
    """
    InverseSqrtOptions.check(warmup_steps=warmup_steps)
    warmup = max(warmup_steps, 1)
    return min((step + 1) / warmup, math.sqrt(warmup / (step + 1)))


def cosine(
    step: int,
    *,
    total_steps: int,
    warmup_steps: int = CosineScheduleOptions.warmup_steps,
    final_fraction: float = CosineScheduleOptions.final_fraction,
) -> float:
    """Return a factor that falls from 1 to `final_fraction` along half a cosine, after a linear warm-up.

    It stays at `final_fraction` after `total_steps`. Options as in `CosineScheduleOptions`.

    References: Loshchilov, Hutter 2017 (SGDR), arXiv 1608.03983, eq. 5, without restarts.
    """
    CosineScheduleOptions.check(warmup_steps=warmup_steps, total_steps=total_steps, final_fraction=final_fraction)
    if step < warmup_steps:
        return _warmup(step, warmup_steps)
    progress = min(1.0, (step - warmup_steps) / max(total_steps - warmup_steps, 1))
    return final_fraction + (1 - final_fraction) * (1 + math.cos(math.pi * progress)) / 2
