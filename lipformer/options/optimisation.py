"""Options of optimizers, schedules and regularizers."""

from dataclasses import dataclass
from typing import Any

from lipformer.options.checks import Check, number
from lipformer.options.option import REQUIRED, PartOptions, option


def _are_betas(betas: Any) -> bool:
    return len(betas) == 2 and all(0 <= beta < 1 for beta in betas)


@dataclass
class OptimizerOptions(PartOptions):
    """Options of `adam` and `adamw`."""

    schema = "optimizer/adam"

    lr: float = option(REQUIRED, "peak learning rate", number(above=0))
    betas: list[float] = option(
        [0.9, 0.98],
        "decay rates of the running means of gradients and of their squares",
        Check(_are_betas, "two numbers from 0 to below 1"),
    )
    eps: float = option(
        1e-12,
        "added to the denominator of a step; small, because contractive branches shrink gradients by up to 1e6",
        number(at_least=0),
    )
    weight_decay: float = option(
        0.0, "weight decay, of matrices only: not of biases, gains, embeddings and positions", number(at_least=0)
    )


def _warmup(default: int) -> Any:
    return option(default, "steps of the linear warm-up to lr", number(at_least=0))


@dataclass
class ConstantOptions(PartOptions):
    """Options of `constant`."""

    schema = "schedule/warmup"

    warmup_steps: int = _warmup(0)


@dataclass
class InverseSqrtOptions(PartOptions):
    """Options of `inverse_sqrt`."""

    schema = "schedule/inverse_sqrt"

    warmup_steps: int = _warmup(400)


@dataclass
class CosineScheduleOptions(PartOptions):
    """Options of `cosine`."""

    schema = "schedule/cosine"

    warmup_steps: int = _warmup(100)
    total_steps: int = option(REQUIRED, "step at which the decay ends", number(at_least=1))
    final_fraction: float = option(0.05, "learning rate at the end, as a fraction of lr", number(at_least=0, at_most=1))


def _weight(default: float) -> Any:
    return option(default, "lambda, the weight of the penalty in the loss", number(above=0))


@dataclass
class JasminOptions(PartOptions):
    """Options of `jasmin`."""

    schema = "regularizer/jasmin"

    weight: float = _weight(1e-2)
    # With k = 1 the penalty would be log 1.
    k: int = option(
        10,
        "the penalty is log g_1 / g_k, which flattens rows; 0: log g_1, which one-hot rows minimise too",
        Check(lambda k: k == 0 or k >= 2, "0, or at least 2"),
    )


@dataclass
class JacobianOptions(PartOptions):
    """Options of `jacobian`."""

    schema = "regularizer/jacobian"

    weight: float = _weight(1e-3)
    iterations: int = option(
        3, "iterations of the power method, from a new random start at each training step", number(at_least=1)
    )
