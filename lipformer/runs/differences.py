"""The keys in which the configurations of runs differ."""

from collections.abc import Sequence
from typing import Any

from lipformer.runs.record import RunRecord


def config_differences(records: Sequence[RunRecord]) -> dict[str, list[str]]:
    """Return the dotted keys in which the configurations differ, with the value of each run.

    A value is spelled as in YAML; it is ``""`` if the run does not have the key. Keys of the root come first, then the
    choices of the groups, then their options. A key that repeats one of the root, as ``optimizer.lr`` repeats ``lr``,
    is left out.
    """
    flat = [flat_config(record.config) for record in records]
    keys = sorted(dict.fromkeys(key for config in flat for key in config), key=_rank)
    rows = {key: [config.get(key, "") for config in flat] for key in keys}
    differing = {key: row for key, row in rows.items() if len(set(row)) > 1}
    return {
        key: row for key, row in differing.items() if "." not in key or differing.get(key.rpartition(".")[2]) != row
    }


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
