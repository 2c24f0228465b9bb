"""Options of the attention kinds."""

from dataclasses import dataclass
from typing import Any

from lipformer.options.checks import norm_name, number, one_of, or_null
from lipformer.options.option import PartOptions, option


def _locality(default: float | None) -> Any:
    return option(
        default,
        "initial slope of a learned penalty on distance, in score per token (first head)",
        or_null(number(above=0), "for no penalty on distance"),
    )


def _scale() -> Any:
    return option(0.97, "largest Lipschitz constant of the branch", number(above=0, below=1))


@dataclass
class AttentionOptions(PartOptions):
    """Options of `dot_product` and `l2`, and of all kinds that have a fused form."""

    schema = "attention/plain"

    fused: bool = option(True, "true: the fast, fused form; false: explicit matrices, differentiable to any order")


@dataclass
class TiedL2Options(AttentionOptions):
    """Options of `tied_l2` and `tied_l2_matched`."""

    schema = "attention/tied_l2"

    columns: int = option(1, "columns of W per head, in units of D/H", number(at_least=1))
    locality: float | None = _locality(None)


@dataclass
class ContractiveL2Options(TiedL2Options):
    """Options of `contractive_l2`."""

    schema = "attention/contractive_l2"

    p: Any = option(
        "mixed",
        "norm in which it contracts: mixed (largest Euclidean norm of a token), 2, inf (the paper's)",
        norm_name(),
    )
    scale: float = _scale()


@dataclass
class FactoredL2Options(AttentionOptions):
    """Options of `contractive_l2_decoupled` and `contractive_l2_blocks`."""

    schema = "attention/factored_l2"

    scale: float = _scale()
    temperature: float = option(0.0625, "initial temperature of each head, which is learned", number(above=0))
    locality: float | None = _locality(1.0)


@dataclass
class SigmoidOptions(PartOptions):
    """Options of `sigmoid`."""

    schema = "attention/sigmoid"

    bias: float | None = option(
        None,
        "added to the scores; null: -log(context), a constant, so that no output depends on padding",
        or_null(number()),
    )


@dataclass
class KernelOptions(AttentionOptions):
    """Options of `relu_kernel` and `elu_kernel`."""

    schema = "attention/kernel"

    features: str = option("elu", "the feature map phi: elu is ELU + 1, relu is ReLU", one_of("elu", "relu"))
    eps: float = option(1e-6, "added to the denominators: rows sum to a little less than one", number(above=0))


@dataclass
class QKNormOptions(AttentionOptions):
    """Options of `qk_norm`."""

    schema = "attention/qk_norm"

    centred: bool = option(True, "LayerNorm without shift; false: RMSNorm")
    eps: float = option(1e-5, "added to the mean square of a query or key", number(above=0))


@dataclass
class CosineOptions(AttentionOptions):
    """Options of `cosine` attention."""

    schema = "attention/cosine"

    temperature: float = option(10.0, "initial tau of each head, which is learned", number(above=0))
    gain: float = option(1.0, "initial nu of each head, which is learned", number(above=0))
    eps: float = option(1e-3, "added to squared norms; the bound grows like its inverse root", number(above=0))
