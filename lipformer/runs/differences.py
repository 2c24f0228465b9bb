"""The keys in which the configurations of runs differ, and in what the environments do."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lipformer.runs.record import RunRecord

OF_ONE_RUN = ("started", "command", "seed")
"""Fields of an environment that tell runs apart, not what they ran in; the seed is one of the configuration too."""


def config_differences(records: Sequence[RunRecord]) -> dict[str, list[str]]:
    """Return the dotted keys in which the configurations differ, with the value of each run.

    A value is spelled as in YAML; it is ``""`` if the run does not have the key. Keys of the root come first, then the
    choices of the groups, then their options. A key that repeats one of the root, as ``optimizer.lr`` repeats ``lr``,
    is left out.
    """
    differing = _differing([flat_config(record.config) for record in records])
    return {
        key: differing[key]
        for key in sorted(differing, key=_rank)
        if "." not in key or differing.get(key.rpartition(".")[2]) != differing[key]
    }


def environment_differences(records: Sequence[RunRecord]) -> dict[str, list[str]]:
    """Return in what the environments of runs differ, likewise; when and by which command they began is left out."""
    last = [record.environments[-1] if record.environments else None for record in records]
    flat = [flat_config({} if each is None else asdict(each)) for each in last]
    return {key: row for key, row in _differing(flat).items() if key not in OF_ONE_RUN}


def _differing(flat: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Return the keys in which flat dictionaries differ, with the value of each, ``""`` where it lacks the key."""
    keys = dict.fromkeys(key for each in flat for key in each)
    rows = {key: [each.get(key, "") for each in flat] for key in keys}
    return {key: row for key, row in rows.items() if len(set(row)) > 1}


def _rank(key: str) -> int:
    return 0 if "." not in key else 1 if key.endswith("._target_") else 2


def flat_config(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the values of a configuration under dotted keys, spelled as in YAML."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, dict) and value:
            flat |= flat_config(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = spell(value)
    return flat


def spell(value: Any) -> str:
    """Spell a plain value as YAML does."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case list():
            return f"[{', '.join(spell(item) for item in value)}]"
        case _:
            return str(value)
