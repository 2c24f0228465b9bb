"""Options of the callbacks."""

from dataclasses import dataclass
from typing import Any

from lipformer.options.checks import norm_name, number, or_null
from lipformer.options.option import PartOptions, option


@dataclass
class StabilityOptions(PartOptions):
    """Options of `callbacks.stability`."""

    schema = "callbacks/stability"

    every_n_steps: int = option(
        50, "steps between two measurements of gradients, updates, ranges of layers, attention", number(at_least=1)
    )
    expensive_every_n_steps: int = option(
        500,
        "steps between two measurements of norms of weights, certificates, local Lipschitz constants, inverses",
        number(at_least=1),
    )
    sentences: int = option(2, "sentences of the validation split on which the layers are measured", number(at_least=1))
    p: Any = option("mixed", "norm of certificates and local Lipschitz constants", norm_name())


@dataclass
class DivergenceGuardOptions(PartOptions):
    """Options of `callbacks.divergence_guard`."""

    schema = "callbacks/divergence_guard"

    loss_above: float | None = option(
        20.0,
        "largest loss, such as nats per character; one above it for `patience` steps in a row ends the run",
        or_null(number(above=0), "for no limit"),
    )
    patience: int = option(
        100, "steps in a row after which a training loss above `loss_above` ends the run", number(at_least=1)
    )


@dataclass
class SamplesOptions(PartOptions):
    """Options of `callbacks.samples`."""

    schema = "callbacks/samples"

    sentences: int = option(3, "sentences to generate when the training ends", number(at_least=1))
    temperature: float = option(
        0.8, "temperature of the sampling; 0 takes the likeliest character each time", number(at_least=0)
    )
    max_chars: int = option(200, "most characters of a sentence; fewer where the model reads fewer", number(at_least=1))
