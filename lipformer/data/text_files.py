"""The user's own text: three files, or one file cut into three contiguous parts."""

import math
from collections.abc import Sequence
from pathlib import Path

from lipformer.data.corpus import Split
from lipformer.data.text_lines import read_lines
from lipformer.errors import DataError
from lipformer.options.data import TextFilesOptions

_PARTS = ("train", "valid", "test")


class TextFiles:
    """Lines of UTF-8 text files; each line is one independent sentence. Blank lines are left out and counted.

    With ``valid`` or ``test``, each split is its own file, and a split without a file is an error once it is
    needed. With ``train`` alone, that file is cut by ``split``: of its n non-blank lines the first ``round(n
    * split[0])`` are train, those up to ``round(n * (split[0] + split[1]))`` valid, the rest test. The cut
    depends on nothing else; the file's order is kept, so that neighbouring lines of a running text fall into
    the same part.

    Args:
        train, valid, test, split: as in :class:`~lipformer.options.data.TextFilesOptions`.

    Raises:
        DataError: ``split`` is not three shares that add up to 1.
    """

    def __init__(
        self,
        train: str,
        valid: str | None = TextFilesOptions.valid,
        test: str | None = TextFilesOptions.test,
        split: Sequence[float] = TextFilesOptions.split,
    ):
        try:
            TextFilesOptions.check(split=split)
        except ValueError as error:
            raise DataError(f"data.{error}") from None
        self.split = tuple(map(float, split))
        self.train, self.valid, self.test = train, valid, test
        self._numbers: dict[str, list[int]] = {}  # split -> for each of its lines, its number in the file
        self._blank: dict[str, int] = {}  # split -> blank lines of its file

    @property
    def _one_file(self) -> bool:
        return self.valid is None and self.test is None

    @property
    def name(self) -> str:
        """The training file's name, with the shares where it is cut: ``text_files (notes.txt 0.9/0.05/0.05)``."""
        cut = f" {'/'.join(f'{share:g}' for share in self.split)}" if self._one_file else ""
        return f"text_files ({Path(self.train).name}{cut})"

    def lines(self, split: Split) -> list[str]:
        """Return the stripped non-blank lines of a split.

        Raises:
            DataError: no file for the split, no share of the only file, or the file cannot be read as text.
        """
        all_lines = read_lines(self._path(split), self._key(split))
        kept = [(number, text) for number, line in enumerate(all_lines, start=1) if (text := line.strip())]
        self._blank[split] = len(all_lines) - len(kept)
        if self._one_file:
            kept = self._cut(kept, split)
        self._numbers[split] = [number for number, _ in kept]
        return [text for _, text in kept]

    def source(self, split: Split, index: int | None = None) -> str:
        """Return the file of a split, or the place of one of its lines, for messages.

        Once the split has been read, the file is followed by the number of its blank lines."""
        path = self._path(split)
        if index is not None:
            return f"{path}, line {self._numbers[split][index]}"
        blank = self._blank.get(split, 0)
        return f"{path}" + (f" ({blank:,} blank lines left out)" if blank else "")

    def _key(self, split: Split) -> str:
        return "data.train" if self._one_file else f"data.{split}"

    def _path(self, split: Split) -> Path:
        file = self.train if self._one_file else getattr(self, split)
        if file is None:
            raise DataError(
                f"data.{split} is missing: name a text file for it, or leave out both data.valid and data.test "
                "to have data.train cut by data.split"
            )
        return Path(file)

    def _cut(self, lines: list[tuple[int, str]], split: Split) -> list[tuple[int, str]]:
        part = _PARTS.index(split)
        start, stop = (round(len(lines) * math.fsum(self.split[:end])) for end in (part, part + 1))
        if start == stop:
            raise DataError(
                f"{self._path(split)}: the share {self.split[part]:g} of its {len(lines):,} lines leaves none for "
                f"{split}; raise it in data.split, or give data.{split} a file of its own"
            )
        return lines[start:stop]
