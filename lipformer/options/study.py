"""Options of the studies, the choices of ``study=``."""

from dataclasses import dataclass
from typing import Any, ClassVar

from lipformer.options.checks import norm_name, number, one_of, or_null
from lipformer.options.option import REQUIRED, PartOptions, option


@dataclass
class StudyOptions(PartOptions):
    """A study and its options.

    Attributes:
        choice: what is typed after ``study=``, the last part of `schema`.
        of_a_run: whether the study reads ``checkpoint``, which is refused otherwise.
    """

    choice: ClassVar[str] = ""
    of_a_run: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.choice = cls.schema.rpartition("/")[2]


@dataclass
class ScoreOptions(StudyOptions):
    """Options of `score`: none, because all that it reads is at the root."""

    schema = "study/score"
    of_a_run = True


@dataclass
class CertifyOptions(StudyOptions):
    """Options of `certify`."""

    schema = "study/certify"
    of_a_run = True

    p: Any = option("mixed", "norm of the certificate: mixed (largest Euclidean norm of a token), 2, inf", norm_name())
    length: int | None = option(
        None,
        "most tokens of a sequence for which the certificate holds",
        or_null(number(at_least=1), "for the context trained with"),
    )


@dataclass
class ReportOptions(StudyOptions):
    """Options of `report`."""

    schema = "study/report"

    runs: str = option(REQUIRED, "a glob of run folders or sweeps, in quotes, such as 'runs/*/*'")


@dataclass
class WorkspaceOptions(StudyOptions):
    """Options of `workspace`."""

    schema = "study/workspace"

    project: str = option("lipformer", "wandb project that gets the dashboard")
    entity: str | None = option(None, "user or team that the project belongs to; null: the account's default")


@dataclass
class ClaimsOptions(StudyOptions):
    """Options of every study that tests claims."""

    scale: str = option("quick", "quick takes minutes at most; full has the size of the paper", one_of("quick", "full"))


@dataclass
class LayerNormOptions(ClaimsOptions):
    """Options of `layer_norm`."""

    schema = "study/layer_norm"

    seed: int = option(0, "seed of the starting points of its searches", number(at_least=0, below=2**32))
