"""The root of `conf/evaluate.yaml`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from lipformer.config.checks import require, require_one_of
from lipformer.errors import UsageError
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
class GenerateConfig:
    """How sentences are sampled, instead of an evaluation."""

    samples: int = MISSING
    prompt: str = MISSING
    temperature: float = MISSING
    top_k: int | None = MISSING
    top_p: float | None = MISSING
    seed: int = MISSING
    max_chars: int | None = MISSING

    def __post_init__(self) -> None:
        require(self.samples >= 0, "generate.samples", self.samples, "zero or more")
        require(self.temperature >= 0, "generate.temperature", self.temperature, "zero (greedy) or more")
        require(self.top_k is None or self.top_k >= 1, "generate.top_k", self.top_k, "at least 1, or null")
        in_range = self.top_p is None or 0 < self.top_p <= 1
        require(in_range, "generate.top_p", self.top_p, "above 0 and at most 1, or null")
        require(0 <= self.seed < 2**32, "generate.seed", self.seed, "from 0 to 4294967295")
        in_range = self.max_chars is None or self.max_chars >= 1
        require(in_range, "generate.max_chars", self.max_chars, "at least 1, or null")


@dataclass
class EvaluateConfig:
    """Root of `conf/evaluate.yaml`."""

    checkpoint: str | None = MISSING
    which: str = MISSING
    split: str = MISSING
    max_length: Any = MISSING
    batch_tokens: int = MISSING
    accelerator: str = MISSING
    threads: int | None = MISSING
    study: Any = MISSING
    data: dict[str, Any] = MISSING
    generate: GenerateConfig = MISSING
    allow_targets: list[str] = MISSING

    def __post_init__(self) -> None:
        require_one_of("which", self.which, ("best", "last"))
        require_one_of("split", self.split, ("valid", "test"))
        is_length = isinstance(self.max_length, int) and not isinstance(self.max_length, bool) and self.max_length >= 2
        known = self.max_length in (None, "training") or is_length
        require(known, "max_length", self.max_length, "training, a number of tokens of at least 2, or null")
        require(self.batch_tokens >= 1, "batch_tokens", self.batch_tokens, "at least 1")
        require_one_of("accelerator", self.accelerator, ("auto", "cpu", "gpu"))
        require(self.threads is None or self.threads > 0, "threads", self.threads, "above 0, or null")
        if isinstance(self.study, StudyOptions):
            fits = self.study.of_a_run == (self.checkpoint is not None)
            wanted = (
                "a run folder or a .ckpt file" if self.study.of_a_run else f"left out with study={self.study.choice}"
            )
            require(fits, "checkpoint", "null" if self.checkpoint is None else self.checkpoint, wanted)
        writes = isinstance(self.study, ScoreOptions) or self.generate.samples == 0
        wanted = "0 without study=score, which alone writes sentences"
        require(writes, "generate.samples", self.generate.samples, wanted)


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
