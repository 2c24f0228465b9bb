"""Options of the models and of the tasks they are trained for."""

from dataclasses import dataclass
from typing import Any

from lipformer.options.checks import Check, number
from lipformer.options.option import REQUIRED, Options, PartOptions, option
from lipformer.tasks import TASKS

MODEL_SCALARS = ("width", "heads", "depth", "context", "dropout")
MODEL_GROUPS = ("attention", "norm", "residual", "feedforward", "position", "embedding", "linear")


def _is_readable(keys: Any) -> bool:
    return not isinstance(keys, str) and all(key in (*MODEL_SCALARS, *MODEL_GROUPS) for key in keys)


@dataclass
class TaskOptions(Options):
    """Options of the tasks."""

    schema = "task"

    name: str = option(
        REQUIRED, "what is minimised, and how it is measured", Check(TASKS.__contains__, f"one of {', '.join(TASKS)}")
    )


@dataclass
class ModelOptions(PartOptions):
    """Options of `transformer`, and of any model."""

    schema = "model/model"

    reads: list[str] = option(
        REQUIRED,
        "keys and groups of the root that the class is called with, by these names",
        Check(_is_readable, f"a list, of {', '.join((*MODEL_SCALARS, *MODEL_GROUPS))}"),
    )


@dataclass
class LSTMOptions(ModelOptions):
    """Options of `lstm`."""

    schema = "model/lstm"

    forget_bias: float = option(
        1.0, "initial bias of the forget gates; above 0, cells keep most of their content at first", number()
    )
