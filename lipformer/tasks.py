"""What models are trained for, and by which names it is measured: the one place that knows them, without torch.

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
    """A way to say how good a model is.

    Attributes:
        name: last part of the metrics' names.
        unit: what it counts.
        short: the unit of the mean, for tables.
        long: the same in words, for axes.
        size: of one unit, in units of the task's objective.
    """

    name: str
    unit: str
    short: str
    long: str
    size: float = 1.0

    def of(self, score: float) -> float:
        """Convert a value of the objective."""
        return score / self.size


@dataclass(frozen=True)
class Task:
    """What is minimised, and what trains it.

    Attributes:
        name: the choice ``task=<name>``.
        objective: the mean that is minimised, over all that was predicted; what a sweep compares and ``best.ckpt`` is
            chosen by, on valid.
        derived: measures that are multiples of it.
        counted: what the mean is over; metrics count it by this name.
        generates: whether its models write text.
        module: the class, a `lipformer.training.task_module.TaskModule`, that takes the steps.
    """

    name: str
    objective: Measure
    derived: tuple[Measure, ...]
    counted: str
    generates: bool
    module: str

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The objective, and what is derived from it."""
        return self.objective, *self.derived

    def metric(self, prefix: str) -> str:
        """Return the objective's name as a metric.

        Args:
            prefix: ``train``, ``val`` or ``test``, after ``best/`` perhaps.
        """
        return f"{prefix}/{self.objective.name}"

    def metrics(self, prefix: str, score: float | None) -> dict[str, float | None]:
        """Return all measures of a score as metrics; None of none."""
        return {f"{prefix}/{m.name}": None if score is None else m.of(score) for m in self.measures}

    def describe(self, score: float) -> str:
        """Spell a score in all measures."""
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
        config: plain; of a run of version 0.1.0, or one that cannot be read, it is the language's.
    """
    node = config.get("task")
    name = node.get("name") if isinstance(node, Mapping) else None
    return TASKS.get(name, LANGUAGE) if isinstance(name, str) else LANGUAGE
