"""Text that comes from run folders, made harmless to the page or terminal that shows it."""

import unicodedata

HIDDEN = {"Cc", "Cs"}
"""Unicode's categories of control characters, escapes of a terminal among them, and of halves of characters."""
DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
"""Characters that turn the direction of all text after them."""


def visible(text: str) -> str:
    """Spell out, as ``\\x1b`` or ``\\u202e``, what acts on the text around it; ends of lines and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_spelled(character) for character in text)


def _spelled(character: str) -> str:
    acts = unicodedata.category(character) in HIDDEN and character not in "\n\t"
    if not acts and unicodedata.bidirectional(character) not in DIRECTIONS:
        return character
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"
