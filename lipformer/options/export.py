"""Keys of the command ``lipformer export``."""

from dataclasses import dataclass

from lipformer.options.checks import one_of
from lipformer.options.option import REQUIRED, Options, option


@dataclass
class ExportOptions(Options):
    """Which model to export, and where to."""

    checkpoint: str = option(REQUIRED, "a run folder, or a .ckpt file")
    to: str = option(REQUIRED, "the folder to make; it must not exist, or be empty")
    which: str = option("best", "which checkpoint of the run folder to read", one_of("best", "last"))
    allow_targets: list[str] = option(
        [], "packages besides lipformer whose classes the checkpoint may name, e.g. [my_package]"
    )
