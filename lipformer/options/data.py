"""Options of the corpora, and of the loader, which is the same for all of them."""

from dataclasses import dataclass
from typing import Any

from lipformer.options.checks import Check, number, one_of, or_null
from lipformer.options.option import REQUIRED, PartOptions, option


def _are_shares(split: Any) -> bool:
    return len(split) == 3 and min(split) >= 0 and abs(sum(split) - 1) <= 1e-6


@dataclass
class DataOptions(PartOptions):
    """Options of `builtin`, and of the loader, which every corpus shares."""

    schema = "data/plain"

    max_length: int | None = option(
        None,
        "most tokens of a line, end symbol counted; longer lines are dropped, and their number is printed",
        or_null(number(at_least=2), "for all lines"),
    )
    unknown: str = option(
        "error",
        "a character of valid or test that train lacks: error refuses it, replace reads it as a space",
        one_of("error", "replace"),
    )
    batch_tokens: int = option(
        4096, "most tokens of a batch, padding counted; several devices share each batch", number(at_least=1)
    )
    num_workers: int = option(
        0, "worker processes that prepare batches; 0: the training process does it", number(at_least=0)
    )


@dataclass
class PennTreebankOptions(DataOptions):
    """Options of `ptb`."""

    schema = "data/ptb"

    dir: str | None = option(None, "folder with ptb.train.txt ...; null: $LIPFORMER_PTB_DIR, data/ptb, the hub")
    download: bool = option(True, "ask the Hugging Face hub where no folder has the files")
    verify: bool = option(True, "compare the text with the benchmark's sha256 and counts")


@dataclass
class TextFilesOptions(DataOptions):
    """Options of `text_files`."""

    schema = "data/text_files"

    train: str = option(REQUIRED, "path of the training text, or of the only text, relative to the launch folder")
    valid: str | None = option(None, "path of the validation text")
    test: str | None = option(None, "path of the test text")
    split: Any = option(
        (0.9, 0.05, 0.05),
        "shares of train, valid, test where data.train is the only file, cut in the file's order",
        Check(_are_shares, "three shares (train, valid, test) that add up to 1, e.g. [0.9,0.05,0.05]"),
    )
