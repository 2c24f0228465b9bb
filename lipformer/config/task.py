"""Options of the tasks."""

from dataclasses import dataclass

from omegaconf import MISSING

from lipformer.config.checks import require_one_of
from lipformer.tasks import TASKS


@dataclass
class TaskConfig:
    """What a model is trained for."""

    name: str = MISSING

    def __post_init__(self) -> None:
        require_one_of("task.name", self.name, tuple(TASKS))
