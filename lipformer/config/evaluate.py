"""The root of `conf/evaluate.yaml`."""

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from lipformer.config.checks import require, require_norm, require_one_of

STUDIES = ("certify", "report", "workspace")


@dataclass
class GenerateConfig:
    """How sentences are sampled after an evaluation."""

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
class WorkspaceConfig:
    """Whose wandb project gets the dashboard of ``study=workspace``."""

    project: str = MISSING
    entity: str | None = MISSING


@dataclass
class EvaluateConfig:
    """Root of `conf/evaluate.yaml`."""

    checkpoint: str | None = MISSING
    runs: str | None = MISSING
    which: str = MISSING
    split: str = MISSING
    max_length: Any = MISSING
    batch_tokens: int = MISSING
    accelerator: str = MISSING
    threads: int | None = MISSING
    study: str | None = MISSING
    p: Any = MISSING
    length: int | None = MISSING
    workspace: WorkspaceConfig = MISSING
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
        require(self.study in (None, *STUDIES), "study", self.study, f"{', '.join(STUDIES)}, or null")
        require_norm("p", self.p)
        require(self.length is None or self.length >= 1, "length", self.length, "at least 1, or null")
        if self.study in (None, "certify"):
            require(self.checkpoint is not None, "checkpoint", "null", "a run folder or a .ckpt file")
        for key, neutral, study in (("p", "mixed", "certify"), ("length", None, "certify"), ("runs", None, "report")):
            read = self.study == study or getattr(self, key) == neutral
            require(read, key, getattr(self, key), f"left out without study={study}, which alone reads {key}")
        if self.study in ("report", "workspace"):
            require(self.checkpoint is None, "checkpoint", self.checkpoint, f"left out with study={self.study}")
        wanted = "a glob of run folders, in quotes, such as 'runs/*/*'"
        require(self.study != "report" or self.runs is not None, "runs", "null", wanted)
        alone = self.study is None or self.generate.samples == 0
        require(alone, "generate.samples", self.generate.samples, f"0 with study={self.study}")
