"""Penn Treebank in Mikolov's preprocessing, from the user's own files or from the Hugging Face hub, and checked.

The text derives from licensed material and is not part of this package; ``data/README.md`` says how to get
it.
"""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from lipformer.data.corpus import Split
from lipformer.data.text_lines import read_lines
from lipformer.errors import DataError
from lipformer.options.data import PennTreebankOptions


class _Facts(NamedTuple):
    lines: int
    tokens: int  # characters of the stripped lines, and one end symbol a line
    sha256: str  # of the word form, which writes each line as a space, the line, a space, a newline

    def __str__(self) -> str:
        return f"{self.lines:,} lines, {self.tokens:,} tokens, sha256 {self.sha256[:8]}... as words"


_FACTS: dict[str, _Facts] = {
    "train": _Facts(42_068, 5_017_482, "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
    "valid": _Facts(3_370, 393_042, "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
    "test": _Facts(3_761, 442_423, "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
}
_HUB_ID = "ptb-text-only/ptb_text_only"
_HUB_REVISION = "refs/convert/parquet"  # the branch with tables; `datasets` no longer runs main's script
_HUB_SPLIT = {"train": "train", "valid": "validation", "test": "test"}
_VARIABLE = "LIPFORMER_PTB_DIR"
_LANDING = Path("data/ptb")


class PennTreebank:
    """The benchmark's three splits: 42,068, 3,370 and 3,761 lines, ``<unk>`` spelled in five characters.

    A split is looked for as ``ptb.<split>.txt`` (words) or ``ptb.char.<split>.txt`` (symbols separated by
    spaces, ``_`` for a space); both give the same lines. Places, in order: ``dir`` and nothing else where it
    is given, the folder named by the environment variable ``LIPFORMER_PTB_DIR``, ``data/ptb`` under the
    folder the process was launched in, and the hub. Whatever the place and the form, the text itself is
    checked, see :meth:`lines`.

    Args:
        dir, download, verify: as in :class:`~lipformer.options.data.PennTreebankOptions`. Where ``dir`` is given, no
            other place is tried. Without ``verify`` the corpus calls itself ``ptb (unverified)``, because results on
            another text are not those of the benchmark.
    """

    def __init__(
        self,
        dir: str | None = PennTreebankOptions.dir,
        download: bool = PennTreebankOptions.download,
        verify: bool = PennTreebankOptions.verify,
    ):
        self.dir = dir
        self.download = download
        self.verify = verify
        self._found: dict[str, str] = {}

    @property
    def name(self) -> str:
        """``ptb``, or ``ptb (unverified)``."""
        return "ptb" if self.verify else "ptb (unverified)"

    def source(self, split: Split, index: int | None = None) -> str:
        """Return which file, or the hub, a split was read from, for messages."""
        return self._found.get(split, f"ptb {split}") + ("" if index is None else f", line {index + 1}")

    def lines(self, split: Split) -> list[str]:
        """Return the stripped lines of a split.

        Raises:
            DataError: the split is in none of the places, or its text is not the benchmark's.
        """
        path = next((path for path in self._candidates(split) if path.is_file()), None)
        if path is not None:
            self._found[split] = str(path)
            lines = read_lines(path, "data.dir")
            if path.name.startswith("ptb.char."):
                lines = [_join_symbols(line, f"{path}, line {i}") for i, line in enumerate(lines, start=1)]
        elif self.dir is not None:
            raise DataError(f"data.dir={self.dir} holds no {_either_file(split)}; {_remedy('it')}")
        else:
            self._found[split] = f"Hugging Face {_HUB_ID} ({_HUB_SPLIT[split]})"
            lines = self._from_hub(split)
        # The last newline of the character form is itself followed by a space, a blank line that is not text.
        lines = [stripped for line in lines if (stripped := line.strip())]
        if self.verify:
            _check(lines, _FACTS[split], self._found[split])
        return lines

    def _candidates(self, split: Split) -> list[Path]:
        if self.dir is not None:
            folders = [Path(self.dir)]
        else:
            folders = [Path(folder) for folder in (os.environ.get(_VARIABLE), _LANDING) if folder]
        return [folder / name for folder in folders for name in _file_names(split)]

    def _from_hub(self, split: Split) -> list[str]:
        try:
            if not self.download:
                raise FileNotFoundError("data.download=false")
            return _load_from_hub(split)
        except Exception as error:  # the hub, its cache and the network fail in many ways, all answered alike
            variable = os.environ.get(_VARIABLE, "not set")
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise DataError(
                f"ptb {split}: no {_either_file(split)} in ${_VARIABLE} ({variable}) or {_LANDING.absolute()}, "
                f"and none from Hugging Face {_HUB_ID} ({reason}); {_remedy(str(_LANDING))}, or set data.dir"
            ) from error


def _load_from_hub(split: Split) -> list[str]:
    # Imported only here: it takes seconds, and users who have the files need neither these packages nor a network.
    from huggingface_hub import HfApi, constants

    if not constants.HF_HUB_OFFLINE:
        # One request without retries; load_dataset alone tries for half a minute where there is no network.
        HfApi().dataset_info(_HUB_ID, revision=_HUB_REVISION, timeout=10)
    from datasets import load_dataset

    return load_dataset(_HUB_ID, revision=_HUB_REVISION, split=_HUB_SPLIT[split])["sentence"][:]


def _file_names(split: str) -> tuple[str, str]:
    return f"ptb.{split}.txt", f"ptb.char.{split}.txt"


def _either_file(split: str) -> str:
    return " or ".join(_file_names(split))


def _remedy(folder: str) -> str:
    files = [f"{_file_names(split)[0]} (sha256 {facts.sha256[:8]}...)" for split, facts in _FACTS.items()]
    return f"put {', '.join(files)} into {folder}, see data/README.md of lipformer"


def _join_symbols(line: str, where: str) -> str:
    symbols = line.split()
    if (longest := max(symbols, key=len, default="")) and len(longest) > 1:
        raise DataError(
            f"{where}: {longest!r} is no single character, but a ptb.char file has a space after each; "
            "a file of words is to be called ptb.<split>.txt"
        )
    return "".join(" " if symbol == "_" else symbol for symbol in symbols)


def _check(lines: list[str], facts: _Facts, source: str) -> None:
    tokens = sum(map(len, lines)) + len(lines)
    # Not the sum of the file's bytes: spelled as words, both file forms and the hub's table have the same sum.
    sha256 = hashlib.sha256("".join(f" {line} \n" for line in lines).encode()).hexdigest()
    found = _Facts(len(lines), tokens, sha256)
    if found != facts:
        raise DataError(
            f"{source} is not the benchmark's text: it has {found}, the benchmark {facts}; fetch it again, or set "
            "data.verify=false to use it under another name"
        )
