"""The protocol of a corpus: three splits of stripped lines, and where they come from."""

from typing import Literal, Protocol, runtime_checkable

Split = Literal["train", "valid", "test"]


@runtime_checkable
class Corpus(Protocol):
    """Three splits of independent lines.

    Constructing a corpus reads nothing, so that a configuration can be shown without its data; the first use
    of :meth:`lines` does.
    """

    @property
    def name(self) -> str:
        """Short name, the first word of the protocol's printed name. It differs wherever the text does."""
        ...

    def lines(self, split: Split) -> list[str]:
        """Return the stripped, non-empty lines of a split, without end symbols.

        Raises:
            DataError: the split is missing, unreadable, or not what it should be.
        """
        ...

    def source(self, split: Split, index: int | None = None) -> str:
        """Return where a split (or its line ``index``, counted from 0 in :meth:`lines`) comes from, for messages."""
        ...
