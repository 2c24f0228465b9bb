"""Options at the root of the configuration of evaluate.py, and options of the generation of text."""

from dataclasses import dataclass
from typing import Any

from lipformer.options.checks import Check, number, one_of, or_null, thread_count
from lipformer.options.option import Options, option


def _is_length(value: Any) -> bool:
    return value == "training" or (isinstance(value, int) and not isinstance(value, bool) and value >= 2)


@dataclass
class GenerateOptions(Options):
    """Options of the generation of text, which takes the place of an evaluation."""

    samples: int = option(0, "sentences to generate instead of an evaluation; 0: evaluate", number(at_least=0))
    prompt: str = option("", "text that each generated sentence begins with")
    temperature: float = option(
        0.8, "temperature of the sampling; 0 takes the likeliest character each time", number(at_least=0)
    )
    top_k: int | None = option(
        None, "draw from the k likeliest characters only", or_null(number(at_least=1), "for all")
    )
    top_p: float | None = option(
        None,
        "draw from the likeliest characters only, which together have this probability",
        or_null(number(above=0, at_most=1), "for all"),
    )
    seed: int = option(0, "seed of the sampling", number(at_least=0, at_most=2**32 - 1))
    max_chars: int | None = option(
        None, "most characters of a generated sentence", or_null(number(at_least=1), "for what the model reads")
    )


@dataclass
class EvaluateOptions(Options):
    """Keys at the root, beside the group ``study``."""

    checkpoint: str | None = option(None, "a run folder, or a .ckpt file")
    which: str = option("best", "which checkpoint of the run folder to read", one_of("best", "last"))
    split: str = option("test", "split of the corpus to evaluate on", one_of("valid", "test"))
    max_length: Any = option(
        "training",
        "most tokens of a line, longer ones are dropped; training: the limit that the run was trained with",
        or_null(Check(_is_length, "training, a number of tokens of at least 2"), "for all lines"),
    )
    batch_tokens: int = option(
        16384, "most tokens of a batch; changes speed and memory, not the result", number(at_least=1)
    )
    accelerator: str = option("auto", "auto: a GPU where there is one", one_of("auto", "cpu", "gpu"))
    threads: int | None = option(None, "CPU threads", or_null(thread_count(), "for torch's choice"))
    allow_targets: list[str] = option(
        [], "packages besides lipformer whose classes the checkpoint may name, e.g. [my_package]"
    )
