"""Which keys of a continued run the command line may change, and which must be as the run has them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from lipformer.errors import UsageError
from lipformer.runs.differences import spell

# Groups and keys that may differ in a continued run: how long and where it trains, where its text and its logs are. All
# others describe the state in the checkpoint (weights, optimizer, position in the data): to change them would have no
# effect, or make the state unusable.
FREE_GROUPS = ("trainer", "callbacks", "logger", "sweep")
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
"""The group whose choices set keys of many other groups."""
TARGET = "_target_"


def may_change(key: str) -> bool:
    """Return whether this key, or group, may differ in a continued run."""
    return key.split(".")[0] in FREE_GROUPS or key in FREE_KEYS


def refuse_changes(config: DictConfig, typed: Sequence[str], stored: Mapping[str, Any]) -> None:
    """Refuse overrides whose values differ from those of the run.

    An override that repeats the run's value is accepted. A typed group is compared in all its options, except those
    that follow another key (``${depth}``). Of the group ``data`` only the class is compared, since the corpus must be
    named before its keys can be typed. An experiment is compared in everything that it sets. Keys that were not typed
    are not compared.

    Args:
        config: the configuration that Hydra composed.
        typed: keys and groups of the overrides.
        stored: the configuration of the run, as plain containers.

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
    """Yield the options that a typed key or group sets, with dotted names; a group's class comes first."""
    node = OmegaConf.select(config, key)
    if not isinstance(node, DictConfig):
        yield key, OmegaConf.to_container(node) if isinstance(node, ListConfig) else node
        return
    for name in sorted(map(str, node), key=lambda name: name != TARGET):
        stated = not OmegaConf.is_missing(node, name) and not OmegaConf.is_interpolation(node, name)
        if stated and (name == TARGET or not name.startswith("_")):
            yield from _options(config, f"{key}.{name}")


def _look_up(stored: Mapping[str, Any], name: str) -> Any:
    """Return the value under a dotted name; None if there is none."""
    value: Any = stored
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _short(name: str, value: Any) -> str:
    """Return a value as it would be typed; of a class, its name without the package."""
    if isinstance(value, Mapping):
        value, name = value.get(TARGET), TARGET
    return str(value).rpartition(".")[2] if value is not None and name.endswith(TARGET) else spell(value)
