"""English sentences from ``pydoc_data.topics``, which every Python has: a corpus that needs no download."""

import hashlib
import platform
import re
from collections import Counter
from collections.abc import Iterator
from functools import cached_property

from lipformer.data.corpus import Split
from lipformer.errors import DataError

SHORTEST, LONGEST = 20, 255
"""Fewest and most characters of a sentence: more than a label has; with its end symbol, at most 256 tokens."""

_RARE = 10  # a character in fewer sentences than this might be missing from the training split
_TYPOGRAPHIC = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "..."})
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,2})([^*\s](?:[^*]*[^*\s])?)\1(?![\w*])")
_LABEL = re.compile(
    r"(?:[*-]|\d+\.|\([a-z0-9]+\)|\[\d+\]|(?:New|Changed|Added|Deprecated|Removed) [\w ]*\d\.\d+(?:\.\d+)?:"
    r"|Notes?:|Warning:|See also:|Source code:|CPython implementation detail:) "
)
_CODE = re.compile(r"^\s*(?:>>>|\.\.\.|\$|\(Pdb\))|::=", re.MULTILINE)
_BETWEEN_SENTENCES = re.compile(r"""(?:(?<=[.!?])|(?<=[.!?]["')]))(?<!e\.g\.)(?<!i\.e\.) (?=["'(]?[A-Z])""")
_SENTENCE = re.compile(r"""["'(]?[A-Za-z][A-Za-z0-9 .,;:'"()_/!?-]*[.!?:]["')]?""")


class Builtin:
    """Sentences of the language reference that Python's own ``help()`` prints, one a line.

    Tables, grammars, code and headings are left out, and each sentence is kept once, so none stands in two
    splits. Of every ten sentences eight go to train, the ninth to valid, the tenth to test.

    The reference is part of the interpreter and differs between its versions: results are comparable only
    where :attr:`name`, which holds a fingerprint of the text, is the same.
    """

    @cached_property
    def name(self) -> str:
        """``builtin (Python 3.11, 1a2b3c4d)``: version, and first digits of the sha256 of all sentences."""
        digest = hashlib.sha256("\n".join(self._sentences).encode()).hexdigest()
        return f"builtin (Python {'.'.join(platform.python_version_tuple()[:2])}, {digest[:8]})"

    def lines(self, split: Split) -> list[str]:
        """Return the sentences of a split.

        Raises:
            DataError: this Python was installed without ``pydoc_data``.
        """
        part = {"train": range(8), "valid": [8], "test": [9]}[split]
        return [sentence for i, sentence in enumerate(self._sentences) if i % 10 in part]

    def source(self, split: Split, index: int | None = None) -> str:
        """Return where a split, or one of its sentences, comes from, for messages."""
        return f"pydoc_data.topics, {split}" + ("" if index is None else f", sentence {index + 1}")

    @cached_property
    def _sentences(self) -> list[str]:
        try:
            from pydoc_data.topics import topics
        except ImportError:
            raise DataError(
                "data=builtin: this Python was installed without the module pydoc_data; give a text of your own "
                "with data=text_files data.train=FILE"
            ) from None
        found = dict.fromkeys(s for topic in sorted(topics) for s in _cut(topics[topic]))
        spread = Counter(character for sentence in found for character in set(sentence))
        return [s for s in found if all(spread[character] >= _RARE for character in s)]


def _cut(topic: str) -> Iterator[str]:
    """Yield the sentences of one topic, a text in the form of reStructuredText's plain output."""
    for paragraph in re.split(r"\n\s*\n", topic):
        if _CODE.search(paragraph):
            continue
        text = _one_line(paragraph).translate(_TYPOGRAPHIC)
        text = _EMPHASIS.sub(r"\2", text)
        while (label := _LABEL.match(text)) is not None:
            text = text[label.end() :]
        for sentence in _BETWEEN_SENTENCES.split(text):
            if SHORTEST <= len(sentence) <= LONGEST and _SENTENCE.fullmatch(sentence):
                yield sentence


def _one_line(paragraph: str) -> str:
    """Join the lines of a paragraph; leave out the term of a definition, which is less indented than its text."""
    lines = paragraph.strip("\n").split("\n")
    indents = [len(line) - len(line.lstrip()) for line in lines]
    if len(lines) > 1 and indents[0] < indents[1] and not _LABEL.match(lines[0].lstrip() + " "):
        lines = lines[1:]
    return " ".join(" ".join(lines).split())
