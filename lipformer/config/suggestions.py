"""Suggestions for a word that is not known."""

import difflib
from collections.abc import Iterable


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean a or b?)``, or an empty string if no known word is close."""
    users = [name for name in known if not name.rpartition(".")[2].startswith("_")]  # _target_ is not for users
    known = [name for name in users if name != word]  # the word itself may exist, but cannot be overridden
    lower = {name.lower(): name for name in reversed(known)}
    near = [lower[name] for name in difflib.get_close_matches(word.lower(), lower, n=2, cutoff=0.6)]
    leaf = {name.rpartition(".")[2]: name for name in reversed(known)}
    near += [leaf[name] for name in difflib.get_close_matches(word.rpartition(".")[2], leaf, n=1, cutoff=0.75)]
    unique = list(dict.fromkeys(near))[:2]
    return f" (did you mean {' or '.join(unique)}?)" if unique else ""
