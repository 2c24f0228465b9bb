"""The scalars at the root of the configuration of train.py: the keys that users sweep."""

from dataclasses import dataclass

from lipformer.options.checks import number
from lipformer.options.option import Options, option


@dataclass
class ScalarOptions(Options):
    """Keys at the root, beside the groups."""

    name: str = option("default", "name of the folder under runs/")
    depth: int = option(4, "number of blocks, or of layers of an LSTM", number(at_least=1))
    width: int = option(128, "features of a token; divisible by heads if the model has heads", number(at_least=1))
    heads: int = option(4, "number of attention heads", number(at_least=1))
    context: int = option(
        288,
        "longest sequence in tokens, the end symbol counted; contractive attention is scaled for it",
        number(at_least=1),
    )
    dropout: float = option(0.0, "probability of dropping an entry of a branch's output", number(at_least=0, below=1))
    lr: float = option(3e-3, "peak learning rate", number(above=0))
    seed: int = option(
        0,
        "seed of initial weights, of noise such as dropout, and of the order of batches",
        number(at_least=0, at_most=2**32 - 1),
    )
    resume: str | None = option(None, "a run folder or checkpoint to continue, in a new folder")
    allow_targets: list[str] = option(
        [], "packages besides lipformer whose classes a resumed checkpoint may name, e.g. [my_package]"
    )
