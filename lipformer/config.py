"""The types of every configuration key, checked before anything heavy is imported.

`conf/*.yaml` holds the values, this file their types and ranges. Each shipped YAML names its schema in its
defaults list (``/schema/attention/tied_l2@_here_``), so Hydra refuses a wrong type or an unknown key while it
composes; `validate` then checks ranges and what depends on two keys. A YAML of a user's own that names no schema
is taken as it is: its class checks its own arguments.
"""

import math
import secrets
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, cast

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from lipformer.errors import UsageError

STUDIES = ("certify", "report", "workspace")
MODEL_GROUPS = ("attention", "norm", "residual", "feedforward", "position", "embedding", "linear")
NO_REGULARIZER = "lipformer.training.regularizers.no_regularizer"


def conf_dir() -> Path:
    """Folder of the YAML files: inside the installed package, or at the root of a checkout."""
    installed = Path(__file__).parent / "conf"
    return installed if installed.is_dir() else Path(__file__).parents[1] / "conf"


def _require(condition: bool, key: str, value: Any, wanted: str) -> None:
    if not condition:
        raise UsageError(f"{key}={value}: it must be {wanted}")


def _get(group: Any, key: str) -> Any:
    """Return a value of a group with a schema (a dataclass by now) or without (a dictionary)."""
    return group.get(key) if isinstance(group, dict) else getattr(group, key)


def _one_of(key: str, value: Any, choices: tuple) -> None:
    _require(value in choices, key, value, "one of " + ", ".join(map(str, choices)))


def _check_norm(key: str, value: Any) -> None:
    known = value == "mixed" or (not isinstance(value, (bool, str)) and value in (2, math.inf))
    _require(known, key, value, "one of mixed, 2, inf")


@dataclass
class Factory:
    """A class and its options; called once for each place in the model where it is needed."""

    _target_: str = MISSING
    _partial_: bool = True


# --- attention -------------------------------------------------------------------------------------------------


def _check_locality(locality: float | None) -> None:
    in_range = locality is None or 0 < locality < math.inf
    _require(in_range, "attention.locality", locality, "above 0, or null for no penalty on distance")


@dataclass
class AttentionConfig(Factory):
    """Options of `dot_product` and `l2`."""

    fused: bool = MISSING


@dataclass
class TiedL2Config(AttentionConfig):
    """Options of `tied_l2` and `tied_l2_matched`."""

    columns: int = MISSING
    locality: float | None = MISSING

    def __post_init__(self) -> None:
        _require(self.columns >= 1, "attention.columns", self.columns, "at least 1")
        _check_locality(self.locality)


@dataclass
class ContractiveL2Config(TiedL2Config):
    """Options of `contractive_l2`."""

    p: Any = MISSING
    scale: float = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_norm("attention.p", self.p)
        _require(0 < self.scale < 1, "attention.scale", self.scale, "above 0 and below 1")


@dataclass
class ContractiveFactorsConfig(AttentionConfig):
    """Options of `contractive_l2_decoupled` and `contractive_l2_blocks`."""

    scale: float = MISSING
    temperature: float = MISSING
    locality: float | None = MISSING

    def __post_init__(self) -> None:
        _check_locality(self.locality)
        _require(0 < self.scale < 1, "attention.scale", self.scale, "above 0 and below 1")
        _require(0 < self.temperature < math.inf, "attention.temperature", self.temperature, "above 0")


@dataclass
class SigmoidConfig(Factory):
    """Options of `sigmoid`."""

    bias: float | None = MISSING

    def __post_init__(self) -> None:
        _require(self.bias is None or math.isfinite(self.bias), "attention.bias", self.bias, "a number, or null")


@dataclass
class KernelConfig(AttentionConfig):
    """Options of `relu_kernel` and `elu_kernel`."""

    features: str = MISSING
    eps: float = MISSING

    def __post_init__(self) -> None:
        _one_of("attention.features", self.features, ("elu", "relu"))
        _require(0 < self.eps < math.inf, "attention.eps", self.eps, "above 0")


@dataclass
class QKNormConfig(AttentionConfig):
    """Options of `qk_norm`."""

    centred: bool = MISSING
    eps: float = MISSING

    def __post_init__(self) -> None:
        _require(0 < self.eps < math.inf, "attention.eps", self.eps, "above 0")


@dataclass
class CosineAttentionConfig(AttentionConfig):
    """Options of `cosine` attention."""

    temperature: float = MISSING
    gain: float = MISSING
    eps: float = MISSING

    def __post_init__(self) -> None:
        for key in ("temperature", "gain", "eps"):
            value = getattr(self, key)
            _require(0 < value < math.inf, f"attention.{key}", value, "above 0")


# --- the other parts of the model ------------------------------------------------------------------------------


@dataclass
class NormConfig(Factory):
    """Options of `layer_norm` and `rms_norm`."""

    eps: float = MISSING

    def __post_init__(self) -> None:
        _require(self.eps >= 0, "norm.eps", self.eps, "zero or more")


@dataclass
class ActNormConfig(Factory):
    """Options of `act_norm`."""

    max_scale: float | None = MISSING

    def __post_init__(self) -> None:
        positive = self.max_scale is None or self.max_scale > 0
        _require(positive, "norm.max_scale", self.max_scale, "above 0, or null for no limit")


@dataclass
class LayeredResidualConfig(Factory):
    """Options of `weighted` and `convex`."""

    layers: int = MISSING

    def __post_init__(self) -> None:
        _require(self.layers >= 1, "residual.layers", self.layers, "at least 1")


@dataclass
class EmbeddingConfig(Factory):
    """Options of `full` and `blank`."""

    filled: float = MISSING

    def __post_init__(self) -> None:
        _require(0 < self.filled <= 1, "embedding.filled", self.filled, "above 0 and at most 1")


@dataclass
class FeedForwardConfig(Factory):
    """Options of `relu` and `gelu`."""

    activation: str = MISSING
    expansion: int = MISSING

    def __post_init__(self) -> None:
        _one_of("feedforward.activation", self.activation, ("relu", "gelu", "silu"))
        _require(self.expansion >= 1, "feedforward.expansion", self.expansion, "at least 1")


@dataclass
class ContractiveFeedForwardConfig(FeedForwardConfig):
    """Options of `contractive`."""

    scale: float = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(0 < self.scale < 1, "feedforward.scale", self.scale, "above 0 and below 1")


# --- data ------------------------------------------------------------------------------------------------------


@dataclass
class DataConfig:
    """Loader options that every corpus shares."""

    _target_: str = MISSING
    max_length: int | None = MISSING
    unknown: str = MISSING
    batch_tokens: int = MISSING
    num_workers: int = MISSING

    def __post_init__(self) -> None:
        if self.max_length is not None:
            _require(self.max_length >= 2, "data.max_length", self.max_length, "at least 2, or null for all lines")
        _one_of("data.unknown", self.unknown, ("error", "replace"))
        _require(self.batch_tokens >= 1, "data.batch_tokens", self.batch_tokens, "at least 1")
        _require(self.num_workers >= 0, "data.num_workers", self.num_workers, "zero or more")


@dataclass
class PennTreebankConfig(DataConfig):
    """Options of `ptb`."""

    dir: str | None = MISSING
    download: bool = MISSING
    verify: bool = MISSING


@dataclass
class TextFilesConfig(DataConfig):
    """Options of `text_files`."""

    train: str = MISSING
    valid: str | None = MISSING
    test: str | None = MISSING
    split: Any = MISSING


# --- optimisation ----------------------------------------------------------------------------------------------


@dataclass
class OptimizerConfig(Factory):
    """Options of `adam` and `adamw`."""

    lr: float = MISSING
    betas: list[float] = MISSING
    eps: float = MISSING
    weight_decay: float = MISSING

    def __post_init__(self) -> None:
        _require(self.lr > 0 and math.isfinite(self.lr), "lr", self.lr, "above 0")
        in_range = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        _require(in_range, "optimizer.betas", self.betas, "two numbers from 0 to below 1")
        _require(self.eps >= 0, "optimizer.eps", self.eps, "zero or more")
        _require(self.weight_decay >= 0, "optimizer.weight_decay", self.weight_decay, "zero or more")


@dataclass
class ScheduleConfig(Factory):
    """Options of `constant` and `inverse_sqrt`."""

    warmup_steps: int = MISSING

    def __post_init__(self) -> None:
        _require(self.warmup_steps >= 0, "schedule.warmup_steps", self.warmup_steps, "zero or more")


@dataclass
class CosineConfig(ScheduleConfig):
    """Options of `cosine`."""

    total_steps: int = MISSING
    final_fraction: float = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.total_steps >= 1, "schedule.total_steps", self.total_steps, "at least 1 (trainer.max_steps)")
        _require(0 <= self.final_fraction <= 1, "schedule.final_fraction", self.final_fraction, "from 0 to 1")


@dataclass
class TrainerConfig:
    """How long to train, on what, and how often to look."""

    accelerator: str = MISSING
    devices: Any = MISSING
    precision: str = MISSING
    threads: int | None = MISSING
    max_steps: int = MISSING
    max_epochs: int = MISSING
    gradient_clip: float | None = MISSING
    val_every_steps: int = MISSING
    log_every_steps: int = MISSING
    deterministic: bool = MISSING
    compile: bool = MISSING
    progress: str = MISSING
    report: bool = MISSING

    def __post_init__(self) -> None:
        _one_of("trainer.accelerator", self.accelerator, ("auto", "cpu", "gpu"))
        _one_of("trainer.precision", self.precision, ("32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true"))
        _one_of("trainer.progress", self.progress, ("auto", "rich", "plain", "none"))
        for key in ("max_steps", "max_epochs"):
            value = getattr(self, key)
            _require(value == -1 or value >= 1, f"trainer.{key}", value, "at least 1, or -1 for no limit")
        bounded = self.max_steps != -1 or self.max_epochs != -1
        _require(bounded, "trainer.max_steps", -1, "at least 1 where trainer.max_epochs=-1, or training never ends")
        for key in ("val_every_steps", "log_every_steps"):
            _require(getattr(self, key) >= 1, f"trainer.{key}", getattr(self, key), "at least 1")
        for key in ("threads", "gradient_clip"):
            value = getattr(self, key)
            _require(value is None or value > 0, f"trainer.{key}", value, "above 0, or null")


# --- regularizers ----------------------------------------------------------------------------------------------


@dataclass
class RegularizerConfig(Factory):
    """What `jasmin` and `jacobian` share."""

    weight: float = MISSING

    def __post_init__(self) -> None:
        _require(0 < self.weight < math.inf, "regularizer.weight", self.weight, "above 0")


@dataclass
class JasminConfig(RegularizerConfig):
    """Options of `jasmin`."""

    k: int = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        # With k = 1 the penalty would be log 1.
        _require(self.k == 0 or self.k >= 2, "regularizer.k", self.k, "0, or at least 2")


@dataclass
class JacobianConfig(RegularizerConfig):
    """Options of `jacobian`."""

    iterations: int = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.iterations >= 1, "regularizer.iterations", self.iterations, "at least 1")


# --- callbacks ---------------------------------------------------------------------------------------------------


@dataclass
class CallbackConfig:
    """A Lightning callback and its options; any name under ``callbacks`` may hold one."""

    _target_: str = MISSING


@dataclass
class StabilityConfig(CallbackConfig):
    """Options of `callbacks.stability`."""

    every_n_steps: int = MISSING
    dear_every_n_steps: int = MISSING
    sentences: int = MISSING
    p: Any = MISSING

    def __post_init__(self) -> None:
        for key in ("every_n_steps", "dear_every_n_steps", "sentences"):
            _require(getattr(self, key) >= 1, f"callbacks.stability.{key}", getattr(self, key), "at least 1")
        _check_norm("callbacks.stability.p", self.p)


@dataclass
class DivergenceGuardConfig(CallbackConfig):
    """Options of `callbacks.divergence_guard`."""

    loss_above: float | None = MISSING
    patience: int = MISSING

    def __post_init__(self) -> None:
        key = "callbacks.divergence_guard"
        positive = self.loss_above is None or self.loss_above > 0
        _require(positive, f"{key}.loss_above", self.loss_above, "above 0, or null for no limit")
        _require(self.patience >= 1, f"{key}.patience", self.patience, "at least 1")


@dataclass
class SamplesConfig(CallbackConfig):
    """Options of `callbacks.samples`."""

    sentences: int = MISSING
    temperature: float = MISSING
    max_chars: int = MISSING

    def __post_init__(self) -> None:
        _require(self.sentences >= 1, "callbacks.samples.sentences", self.sentences, "at least 1")
        _require(self.temperature >= 0, "callbacks.samples.temperature", self.temperature, "zero (greedy) or more")
        _require(self.max_chars >= 1, "callbacks.samples.max_chars", self.max_chars, "at least 1")


# --- loggers ---------------------------------------------------------------------------------------------------


@dataclass
class LoggerConfig(Factory):
    """Options of `csv` (always on) and `tensorboard`."""


@dataclass
class WandbConfig(LoggerConfig):
    """Options of `wandb`."""

    project: str = MISSING
    entity: str | None = MISSING
    mode: str = MISSING
    init_timeout: float = MISSING
    finish_timeout: float = MISSING

    def __post_init__(self) -> None:
        _one_of("logger.mode", self.mode, ("auto", "online", "offline", "disabled"))
        for key in ("init_timeout", "finish_timeout"):
            value = getattr(self, key)
            _require(value > 0, f"logger.{key}", value, "above 0 (seconds)")


# --- the two programs ------------------------------------------------------------------------------------------


@dataclass
class TrainConfig:
    """Root of `conf/train.yaml`: the keys a user sweeps, and the groups."""

    name: str = MISSING
    depth: int = MISSING
    width: int = MISSING
    heads: int = MISSING
    context: int = MISSING
    dropout: float = MISSING
    lr: float = MISSING
    seed: int = MISSING
    resume: str | None = MISSING
    allow_targets: list[str] = MISSING
    attention: Any = MISSING
    norm: Any = MISSING
    residual: Any = MISSING
    feedforward: Any = MISSING
    position: Any = MISSING
    embedding: Any = MISSING
    linear: Any = MISSING
    data: Any = MISSING
    optimizer: Any = MISSING
    schedule: Any = MISSING
    regularizer: Any = MISSING
    trainer: Any = MISSING
    callbacks: Any = MISSING
    logger: Any = MISSING

    def __post_init__(self) -> None:
        for key in ("depth", "width", "heads", "context"):
            _require(getattr(self, key) >= 1, key, getattr(self, key), "at least 1")
        divisible = f"divisible by heads={self.heads}"
        _require(self.width % self.heads == 0, "width", self.width, divisible)
        _require(0 <= self.dropout < 1, "dropout", self.dropout, "from 0 to below 1")
        _require(0 <= self.seed < 2**32, "seed", self.seed, "from 0 to 4294967295")
        if _get(self.trainer, "compile") and _get(self.regularizer, "_target_") != NO_REGULARIZER:
            raise UsageError(
                "trainer.compile=True does not go with a regularizer, which looks inside the model and takes second "
                "derivatives: take regularizer=none or trainer.compile=false"
            )


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
        _require(self.samples >= 0, "generate.samples", self.samples, "zero or more")
        _require(self.temperature >= 0, "generate.temperature", self.temperature, "zero (greedy) or more")
        _require(self.top_k is None or self.top_k >= 1, "generate.top_k", self.top_k, "at least 1, or null")
        in_range = self.top_p is None or 0 < self.top_p <= 1
        _require(in_range, "generate.top_p", self.top_p, "above 0 and at most 1, or null")
        _require(0 <= self.seed < 2**32, "generate.seed", self.seed, "from 0 to 4294967295")
        in_range = self.max_chars is None or self.max_chars >= 1
        _require(in_range, "generate.max_chars", self.max_chars, "at least 1, or null")


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
        _one_of("which", self.which, ("best", "last"))
        _one_of("split", self.split, ("valid", "test"))
        is_length = isinstance(self.max_length, int) and not isinstance(self.max_length, bool) and self.max_length >= 2
        known = self.max_length in (None, "training") or is_length
        _require(known, "max_length", self.max_length, "training, a number of tokens of at least 2, or null")
        _require(self.batch_tokens >= 1, "batch_tokens", self.batch_tokens, "at least 1")
        _one_of("accelerator", self.accelerator, ("auto", "cpu", "gpu"))
        _require(self.threads is None or self.threads > 0, "threads", self.threads, "above 0, or null")
        _require(self.study in (None, *STUDIES), "study", self.study, f"{', '.join(STUDIES)}, or null")
        _check_norm("p", self.p)
        _require(self.length is None or self.length >= 1, "length", self.length, "at least 1, or null")
        if self.study in (None, "certify"):
            _require(self.checkpoint is not None, "checkpoint", "null", "a run folder or a .ckpt file")
        for key, neutral, study in (("p", "mixed", "certify"), ("length", None, "certify"), ("runs", None, "report")):
            read = self.study == study or getattr(self, key) == neutral
            _require(read, key, getattr(self, key), f"left out without study={study}, which alone reads {key}")
        if self.study in ("report", "workspace"):
            _require(self.checkpoint is None, "checkpoint", self.checkpoint, f"left out with study={self.study}")
        wanted = "a glob of run folders, in quotes, such as 'runs/*/*'"
        _require(self.study != "report" or self.runs is not None, "runs", "null", wanted)
        alone = self.study is None or self.generate.samples == 0
        _require(alone, "generate.samples", self.generate.samples, f"0 with study={self.study}")


SCHEMAS: dict[str, type] = {
    "train": TrainConfig,
    "evaluate": EvaluateConfig,
    "attention/plain": AttentionConfig,
    "attention/tied_l2": TiedL2Config,
    "attention/contractive_l2": ContractiveL2Config,
    "attention/contractive_factors": ContractiveFactorsConfig,
    "attention/sigmoid": SigmoidConfig,
    "attention/kernel": KernelConfig,
    "attention/qk_norm": QKNormConfig,
    "attention/cosine": CosineAttentionConfig,
    "norm/scaled": NormConfig,
    "norm/act_norm": ActNormConfig,
    "residual/layered": LayeredResidualConfig,
    "embedding/embedding": EmbeddingConfig,
    "feedforward/dense": FeedForwardConfig,
    "feedforward/contractive": ContractiveFeedForwardConfig,
    "data/plain": DataConfig,
    "data/ptb": PennTreebankConfig,
    "data/text_files": TextFilesConfig,
    "optimizer/adam": OptimizerConfig,
    "schedule/warmup": ScheduleConfig,
    "schedule/cosine": CosineConfig,
    "regularizer/jasmin": JasminConfig,
    "regularizer/jacobian": JacobianConfig,
    "trainer/trainer": TrainerConfig,
    "callbacks/stability": StabilityConfig,
    "callbacks/divergence_guard": DivergenceGuardConfig,
    "callbacks/samples": SamplesConfig,
    "logger/plain": LoggerConfig,
    "logger/wandb": WandbConfig,
    "factory": Factory,
}


def register() -> None:
    """Make known to Hydra: every schema as ``/schema/<path>``, and the resolvers that `conf/` uses."""
    store = ConfigStore.instance()
    for path, node in SCHEMAS.items():
        group, _, name = f"schema/{path}".rpartition("/")
        store.store(group=group, name=name, node=node, provider="lipformer")
    # An id keeps two runs that start in the same microsecond apart; cached, it is the same all through a run.
    OmegaConf.register_new_resolver("lipformer.id", lambda: secrets.token_hex(3), use_cache=True, replace=True)
    OmegaConf.register_new_resolver("lipformer.groups", _list_groups, replace=True)


def _list_groups() -> str:
    groups = sorted(folder for folder in conf_dir().iterdir() if folder.is_dir())
    return "\n".join(f"{group.name}: {', '.join(sorted(f.stem for f in group.glob('*.yaml')))}" for group in groups)


def validate(config: DictConfig) -> Any:
    """Return the configuration as its dataclass, every interpolation resolved and every range checked.

    Args:
        config: what Hydra composed.

    Returns:
        A `TrainConfig` or `EvaluateConfig`; groups without a schema stay dictionaries.

    Raises:
        UsageError: a mandatory value is missing, or a value is out of its range.
    """
    _refuse_unknown_keys(config, "")
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise UsageError(f"{missing[0]} is not set: give {missing[0]}=<value>")
    return OmegaConf.to_object(config)


def _refuse_unknown_keys(node: DictConfig, prefix: str) -> None:
    """Hydra's ``+key=value`` adds to a typed node what its schema does not know, and nothing would ever read it."""
    schema = OmegaConf.get_type(node)
    known = [field.name for field in fields(schema)] if is_dataclass(schema) else list(map(str, node))
    for key in map(str, node):
        if key not in known:
            from lipformer.usage import suggest

            names = [prefix + name for name in known]
            raise UsageError(f"unknown key {prefix}{key}{suggest(f'{prefix}{key}', names)}")
        child = node._get_node(key)
        if isinstance(child, DictConfig) and not child._is_none() and not child._is_missing():
            _refuse_unknown_keys(child, f"{prefix}{key}.")


def to_plain(config: DictConfig) -> dict[str, Any]:
    """Return the configuration as dictionaries, lists and scalars: what checkpoints and loggers can hold."""
    plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    return cast(dict[str, Any], plain)
