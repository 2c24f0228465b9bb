"""Text, vocabulary, batches: from the lines of a corpus to tensors of ids. Knows no model.

The corpora and the vocabulary need neither torch nor Lightning; the names that do need torch are imported
when they are first used, and :class:`lipformer.data.datamodule.CharDataModule` only by its full path.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from lipformer.data.builtin import Builtin
from lipformer.data.corpus import Corpus, Split
from lipformer.data.penn_treebank import PennTreebank
from lipformer.data.text_files import TextFiles
from lipformer.data.vocabulary import Vocabulary

if TYPE_CHECKING:
    from lipformer.data.bucketing import TokenBudgetBatchSampler
    from lipformer.data.collate import IGNORE, Batch
    from lipformer.data.sentences import Sentences

__all__ = [
    "IGNORE",
    "Batch",
    "Builtin",
    "Corpus",
    "PennTreebank",
    "Sentences",
    "Split",
    "TextFiles",
    "TokenBudgetBatchSampler",
    "Vocabulary",
]

_NEED_TORCH = {
    "IGNORE": "collate",
    "Batch": "collate",
    "Sentences": "sentences",
    "TokenBudgetBatchSampler": "bucketing",
}


def __getattr__(name: str):
    if name in _NEED_TORCH:
        return getattr(import_module(f"{__name__}.{_NEED_TORCH[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
