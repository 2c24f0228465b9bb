"""The root of `conf/evaluate.yaml`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from lipformer.errors import UsageError
from lipformer.options.evaluate import EvaluateOptions, GenerateOptions
from lipformer.options.option import REQUIRED, option
from lipformer.options.study import ScoreOptions, StudyOptions

OLD_KEYS = {
    "p": "study.p",
    "length": "study.length",
    "runs": "study.runs",
    "workspace.project": "study.project",
    "workspace.entity": "study.entity",
}
"""How keys of evaluate.py were written in version 0.1.0, and how they are now."""


@dataclass
class EvaluateConfig(EvaluateOptions):
    """Root of `conf/evaluate.yaml`: the keys that every study may read, and the study."""

    study: Any = MISSING
    data: dict[str, Any] = option(
        REQUIRED, "of the run's corpus (dir of ptb; train, valid, test of text_files); null: as it was trained with"
    )
    generate: GenerateOptions = field(default_factory=GenerateOptions)

    def __post_init__(self) -> None:
        if isinstance(self.study, StudyOptions):
            if self.study.of_a_run and self.checkpoint is None:
                raise UsageError("checkpoint is not set: give checkpoint=<a run folder or a .ckpt file>")
            if not self.study.of_a_run and self.checkpoint is not None:
                raise UsageError(f"checkpoint={self.checkpoint}: it must be left out with study={self.study.choice}")
        if self.generate.samples and not isinstance(self.study, ScoreOptions):
            raise UsageError(
                f"generate.samples={self.generate.samples}: it must be 0 without study=score, which alone writes "
                "sentences"
            )


def refuse_old_spellings(arguments: Sequence[str]) -> None:
    """Refuse what evaluate.py read in version 0.1.0 and would not understand, or take for something else, now.

    Args:
        arguments: as typed.

    Raises:
        UsageError: one of them is spelled as it was.
    """
    for argument in arguments:
        key, equals, value = argument.lstrip("+~").partition("=")
        if equals and key in OLD_KEYS:
            raise UsageError(f"{argument}: it is written {OLD_KEYS[key]}={value} now")
        if equals and key == "study" and {"null", "None", ""} & set(value.split(",")):
            raise UsageError(f"{argument}: what it stood for is study=score now, and the default")
