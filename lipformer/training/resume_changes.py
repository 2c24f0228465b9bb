"""What the command line of a continued run may change, and what has to be as the run has it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from lipformer.errors import UsageError
from lipformer.runs.differences import spell

# What a continued run may be given anew: how long and where it trains, where its text and its logs are. All else is
# part of what the checkpoint holds (weights, optimizer state, position in the data) and would be ignored or break it.
FREE_GROUPS = ("trainer", "callbacks", "logger")
FREE_KEYS = (
    "name",
    "resume",
    "allow_targets",
    "data.dir",
    "data.num_workers",
    "data.train",
    "data.valid",
    "data.test",
    "data.download",
)
EXPERIMENT = "experiment"
"""The group whose choices set keys all over the configuration."""
TARGET = "_target_"


def may_change(key: str) -> bool:
    """Whether a continued run may be given this key, or group, anew."""
    return key.split(".")[0] in FREE_GROUPS or key in FREE_KEYS


def refuse_changes(config: DictConfig, typed: Sequence[str], stored: Mapping[str, Any]) -> None:
    """Refuse a typed key or group that is not as the run has it; one that says the same is no change.

    A group that was typed counts with all the options that it stands for, but for those that follow another key
    (``${depth}``); the corpus with its class alone, for it has to be named before its keys can be typed. An experiment
    counts with all that it composes to. What was not typed does not count.

    Args:
        config: what Hydra composed.
        typed: keys and groups of the overrides.
        stored: the plain configuration of the run.

    Raises:
        UsageError: the first difference, with both values.
    """
    # An experiment names parts that the run's model may not have.
    keys = [*typed, *(key for key in map(str, config) if key in stored)] if EXPERIMENT in typed else typed
    for key in keys:
        if key == EXPERIMENT or may_change(key):
            continue
        for name, value in _options(config, key):
            held = _look_up(stored, name)
            corpus_option = key == "data" and EXPERIMENT not in typed and name != f"data.{TARGET}"
            if corpus_option or may_change(name) or value == held:
                continue
            what = name.removesuffix(f".{TARGET}")
            raise UsageError(
                f"{what}={_short(name, value)} cannot change: resume={config.resume} continues a run with "
                f"{what}={_short(name, held)}, and its checkpoint holds it; leave {key} out, or start a new run"
            )


def _options(config: DictConfig, key: str) -> Iterator[tuple[str, Any]]:
    """The values that a typed key stands for, under dotted names, a group's class first."""
    node = OmegaConf.select(config, key)
    if not isinstance(node, DictConfig):
        yield key, OmegaConf.to_container(node) if isinstance(node, ListConfig) else node
        return
    for name in sorted(map(str, node), key=lambda name: name != TARGET):
        stated = not OmegaConf.is_missing(node, name) and not OmegaConf.is_interpolation(node, name)
        if stated and (name == TARGET or not name.startswith("_")):
            yield from _options(config, f"{key}.{name}")


def _look_up(stored: Mapping[str, Any], name: str) -> Any:
    value: Any = stored
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _short(name: str, value: Any) -> str:
    """Spell a value as it is typed, a class without its package."""
    if isinstance(value, Mapping):
        value, name = value.get(TARGET), TARGET
    return str(value).rpartition(".")[2] if value is not None and name.endswith(TARGET) else spell(value)
