"""The root of `conf/evaluate.yaml`."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from lipformer.errors import UsageError
from lipformer.options.evaluate import EvaluateOptions, GenerateOptions
from lipformer.options.option import REQUIRED, option
from lipformer.options.study import ScoreOptions, StudyOptions


@dataclass
class EvaluateConfig(EvaluateOptions):
    """Root of `conf/evaluate.yaml`: the keys that every study may read, and the study."""

    study: Any = MISSING
    sweep: Any = MISSING
    data: dict[str, Any] = option(
        REQUIRED,
        "options of the run's corpus (dir of ptb; train, valid, test of text_files); null: as it was trained with",
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
