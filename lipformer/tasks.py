"""The tasks that models are trained for, with the names and units of their measures; free of torch.

Training, evaluation, report, figures and loggers take the names of metrics and their units from a run's task. The
group ``task`` of the configuration names it; a model or corpus that is of another task than the default overrides the
group in the defaults list of its own YAML (``override /task@_global_.task: <name>``), so that it need not be typed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Measure:
    """A measure of how good a model is.

    Attributes:
        name: the last part of the names of its metrics.
        unit: the unit of a sum, such as nats.
        short: the unit of the mean, for tables.
        long: the unit of the mean in words, for axes.
        size: of one unit, in units of the task's objective.
    """

    name: str
    unit: str
    short: str
    long: str
    size: float = 1.0

    def of(self, score: float) -> float:
        """Convert a value of the objective to this measure."""
        return score / self.size


@dataclass(frozen=True)
class Task:
    """A task: which objective is minimised, and which class trains a model on it.

    Attributes:
        name: the choice ``task=<name>``.
        objective: the mean that is minimised, over everything that was predicted. Its value on valid is what a sweep
            compares, and what ``best.ckpt`` is chosen by.
        derived: measures that are multiples of the objective.
        counted: what the mean is over, such as tokens, as metrics name it.
        generates: whether models of this task write text.
        module: the path of the class, a `lipformer.training.task_module.TaskModule`, that trains.
    """

    name: str
    objective: Measure
    derived: tuple[Measure, ...]
    counted: str
    generates: bool
    module: str

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The objective and the measures derived from it."""
        return self.objective, *self.derived

    def metric(self, prefix: str) -> str:
        """Return the name of the objective as a metric.

        Args:
            prefix: ``train``, ``val`` or ``test``, or one of these after ``best/``.
        """
        return f"{prefix}/{self.objective.name}"

    def metrics(self, prefix: str, score: float | None) -> dict[str, float | None]:
        """Return a value of the objective in all measures, by the names of the metrics; without a value, None."""
        return {f"{prefix}/{m.name}": None if score is None else m.of(score) for m in self.measures}

    def describe(self, score: float) -> str:
        """Return a value of the objective in all measures, as text."""
        derived = "".join(f" = {measure.of(score):.4f} {measure.unit}" for measure in self.derived)
        return f"{score:.4f} {self.objective.short}{derived}"


LANGUAGE = Task(
    name="language",
    objective=Measure("nats_per_char", "nats", "nats/char", "nats per character"),
    derived=(Measure("bits_per_char", "bits", "bits/char", "bits per character", size=math.log(2)),),
    counted="tokens",
    generates=True,
    module="lipformer.training.language.LanguageModule",
)
TASKS = {task.name: task for task in (LANGUAGE,)}


def task_of(config: Mapping[str, Any]) -> Task:
    """Return the task of a run.

    Args:
        config: the configuration as plain containers. Without a known task, as in version 0.1.0, it is `LANGUAGE`.
    """
    node = config.get("task")
    name = node.get("name") if isinstance(node, Mapping) else None
    return TASKS.get(name, LANGUAGE) if isinstance(name, str) else LANGUAGE
