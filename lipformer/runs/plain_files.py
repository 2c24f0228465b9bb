"""JSON and YAML in a run folder, read whatever state the files are in: what cannot be read is None."""

import json
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from lipformer.system.reading import read_regular

LARGEST_JSON, LARGEST_YAML = 16 * 2**20, 2**18
"""Bytes of the largest files that are read; those that the programs write have some thousands."""
DEEPEST_YAML = 64
"""How deep a YAML may nest."""


def read_json(file: Path) -> Any:
    """Return what a file of JSON holds, or None if it cannot be read; an integer too large for a float is infinite."""
    try:
        return json.loads(read_regular(file, LARGEST_JSON).decode("utf-8"), parse_int=_integer)
    except (OSError, ValueError, RecursionError):
        return None


def read_yaml(file: Path) -> Any:
    """Return what a file of YAML holds, or None if it cannot be read.

    Interpolations stay as they are typed: resolved, one could show the reader's environment.
    """
    try:
        text = read_regular(file, LARGEST_YAML).decode("utf-8")
        return OmegaConf.to_container(OmegaConf.create(text), resolve=False) if _is_plain(text) else None
    except Exception:  # YAML's errors and OmegaConf's have no base in common
        return None


def read_config(file: Path) -> dict[str, Any]:
    """Return the configuration in a file of YAML, empty if it cannot be read."""
    config = read_yaml(file)
    return {str(key): value for key, value in config.items()} if isinstance(config, dict) else {}


def read_overrides(file: Path) -> list[str] | None:
    """Return the overrides of a sweep's job, as they were typed; None if the file cannot be read."""
    overrides = read_yaml(file)
    return [value for value in overrides if isinstance(value, str)] if isinstance(overrides, list) else None


def _is_plain(text: str) -> bool:
    """Return whether a YAML is as the programs write it: not deep, and without aliases, by which it can grow."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > DEEPEST_YAML:
            return False
    return True


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) < 300 else float(digits)
