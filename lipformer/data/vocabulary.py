"""The characters a model can read and predict, and the end symbol that opens and closes each line."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lipformer.errors import DataError

Unknown = Literal["error", "replace"]


@dataclass(frozen=True)
class Vocabulary:
    """The distinct characters of the training text, in the order of their code points, and one end symbol.

    Ids ``0 .. K-1`` are the characters, id ``K`` is the end symbol. It is predicted after the last character
    and is also what the first character is predicted from. Padding has no id: it is never
    predicted, so it has no probability.

    A character is one Unicode code point, exactly as in the text: nothing is normalised, lowercased or merged.

    Args:
        characters: the K characters, each once, in increasing order of their code points.

    Raises:
        DataError: the characters are not K >= 1 single characters in increasing order.
    """

    characters: tuple[str, ...]
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        single = all(isinstance(character, str) and len(character) == 1 for character in self.characters)
        if not (self.characters and single and list(self.characters) == sorted(set(self.characters))):
            raise DataError(
                f"vocabulary of {len(self.characters)} entries: expected at least one, each a single character, "
                "in increasing order; build it with Vocabulary.from_lines"
            )
        object.__setattr__(self, "_ids", {character: i for i, character in enumerate(self.characters)})

    @classmethod
    def from_lines(cls, lines: Iterable[str]) -> "Vocabulary":
        """Collect the characters of ``lines``, which must be the training lines only.

        Raises:
            DataError: the lines hold no character.
        """
        characters = set().union(*lines)
        if not characters:
            raise DataError("the training text holds no character: give a text file with at least one line")
        return cls(tuple(sorted(characters)))

    @classmethod
    def from_plain(cls, characters: Sequence[str]) -> "Vocabulary":
        """Rebuild a vocabulary from :meth:`to_plain`."""
        return cls(tuple(characters))

    def to_plain(self) -> list[str]:
        """Return the characters as a plain list: all that a checkpoint has to keep."""
        return list(self.characters)

    def __len__(self) -> int:
        """Size of the softmax: the K characters and the end symbol."""
        return len(self.characters) + 1

    @property
    def end_id(self) -> int:
        """Id of the end symbol, the last one."""
        return len(self.characters)

    @property
    def replacement(self) -> str:
        """The character that stands for an unknown one under ``unknown="replace"``.

        A space where the vocabulary has it, otherwise its first character. It is a character of the
        vocabulary, not an extra id, so replacing leaves the softmax and hence the meaning of nats per
        character as they are.
        """
        return " " if " " in self._ids else self.characters[0]

    def encode(self, line: str, *, unknown: Unknown = "error", where: str = "the text") -> list[int]:
        """Return the ids of a line's characters, without an end symbol.

        Args:
            line: one line of text.
            unknown: what to do with a character outside the vocabulary: ``"error"``, or ``"replace"`` it by
                :attr:`replacement` (:meth:`count_unknown` says how many there are).
            where: the line's place in words, e.g. ``"valid.txt, line 3"``, for the message.

        Raises:
            DataError: an unknown character under ``unknown="error"``; names it, its place and the remedy.
            ValueError: ``unknown`` is neither ``"error"`` nor ``"replace"``.
        """
        if unknown not in ("error", "replace"):
            raise ValueError(f"unknown={unknown!r}: expected 'error' or 'replace'")
        try:
            return [self._ids[character] for character in line]
        except KeyError as error:
            if unknown == "replace":
                spare = self._ids[self.replacement]
                return [self._ids.get(character, spare) for character in line]
            character = error.args[0]
            raise DataError(
                f"{where}, column {line.index(character) + 1}: character {character!r} (U+{ord(character):04X}) "
                f"does not occur in the training text; set data.unknown=replace to read it as {self.replacement!r}"
            ) from None

    def count_unknown(self, line: str) -> int:
        """Count the characters of a line that are outside the vocabulary."""
        return sum(character not in self._ids for character in line)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids. End symbols are left out wherever they occur, including the first position.

        Raises:
            ValueError: an id is neither a character nor the end symbol, e.g. padding.
        """
        text = []
        for i in map(int, ids):
            if not 0 <= i <= self.end_id:
                raise ValueError(f"id {i} is outside the vocabulary's 0..{self.end_id}")
            if i != self.end_id:
                text.append(self.characters[i])
        return "".join(text)
