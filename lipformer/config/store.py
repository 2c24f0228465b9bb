"""The schemas that Hydra composes by, and the check of what it composed."""

import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, cast

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, ListConfig, OmegaConf

from lipformer.config import evaluate, train
from lipformer.config.listing import groups, list_groups, list_options
from lipformer.config.suggestions import suggest
from lipformer.config.targets import without_partial
from lipformer.errors import UsageError
from lipformer.options import (  # noqa: F401 - each makes its schemas known
    Options,
    attention,
    callbacks,
    data,
    loggers,
    model,
    optimisation,
    parts,
    search,
    study,
    sweep,
    trainer,
)

SCHEMAS: dict[str, type] = {"train": train.TrainConfig, "evaluate": evaluate.EvaluateConfig, **Options.shipped()}
"""Path of a schema -> its class: the two roots, and the options of all parts."""


def register() -> None:
    """Register every schema with Hydra, as ``/schema/<path>``, and the resolvers that `conf/` uses."""
    store = ConfigStore.instance()
    for path, node in SCHEMAS.items():
        group, _, name = f"schema/{path}".rpartition("/")
        store.store(group=group, name=name, node=node, provider="lipformer")
    # The id tells apart two runs that start in the same microsecond; it is cached, so that a run has one id.
    OmegaConf.register_new_resolver("lipformer.id", lambda: secrets.token_hex(3), use_cache=True, replace=True)
    OmegaConf.register_new_resolver("lipformer.folder", folder_of_name, replace=True)
    OmegaConf.register_new_resolver("lipformer.groups", list_groups, replace=True)
    OmegaConf.register_new_resolver("lipformer.options", list_options, replace=True)


def folder_of_name(name: str) -> str:
    """Return the name of a run as the folder below ``runs/`` that it stands for.

    Raises:
        UsageError: the folder would lie elsewhere.
    """
    if ".." in str(name).replace("\\", "/").split("/") or "\0" in str(name):
        raise UsageError(
            f"name={name}: it must be a folder below runs/; to write elsewhere, give hydra.run.dir=<folder>"
        )
    return str(name)


def choices_by_option(program: str) -> dict[str, list[str]]:
    """Return, for each option ``group.option``, the choices ``group=choice`` that have it.

    Args:
        program: ``train``, or ``evaluate``, which has only the group of studies.
    """
    having: dict[str, list[str]] = {}
    for group in groups(program):
        for file in sorted(group.glob("*.yaml")):
            for option in _options_of(file):
                having.setdefault(f"{group.name}.{option}", []).append(f"{group.name}={file.stem}")
    return having


def _options_of(file: Path) -> list[str]:
    """Return the options of the schema that a shipped YAML names in its defaults list, ``/schema/<path>@_here_``."""
    named = [str(default) for default in cast(DictConfig, OmegaConf.load(file)).get("defaults", [])]
    paths = [name.removeprefix("/schema/").removesuffix("@_here_") for name in named if name.endswith("@_here_")]
    return [option.name for path in paths for option in cast(type[Options], SCHEMAS[path]).stated()]


_SCALAR = re.compile(r"\$\{([\w.]+)\}")


def validate(config: DictConfig) -> Any:
    """Return the configuration as its dataclass, every interpolation resolved and every range checked.

    Args:
        config: the configuration that Hydra composed.

    Returns:
        A `TrainConfig` or `EvaluateConfig`; groups without a schema stay dictionaries.

    Raises:
        UsageError: a mandatory value is missing, or a value is out of its range.
    """
    _refuse_unknown_keys(config, "")
    for key in _unset_keys(config, ""):
        raise UsageError(f"{key} is not set: give {key}=<value>")
    _refuse_values_out_of_range(config, "")
    return OmegaConf.to_object(config)


def _refuse_unknown_keys(node: DictConfig, prefix: str) -> None:
    """Refuse keys that ``+key=value`` added to a node and that its schema does not have: nothing would read them."""
    schema = OmegaConf.get_type(node)
    known = [field.name for field in fields(schema)] if is_dataclass(schema) else list(map(str, node))
    for key in map(str, node):
        if key not in known:
            names = [prefix + name for name in known]
            raise UsageError(f"unknown key {prefix}{key}{suggest(f'{prefix}{key}', names)}")
        child = node._get_node(key)
        if isinstance(child, DictConfig) and not child._is_none() and not child._is_missing():
            _refuse_unknown_keys(child, f"{prefix}{key}.")


def _unset_keys(node: DictConfig | ListConfig, prefix: str) -> Iterator[str]:
    """Yield the keys without a value, and those that ``~key`` removed although the schema has them.

    `OmegaConf.missing_keys` is no help: it follows interpolations, and fails on one that leads to a removed key.
    """
    schema = OmegaConf.get_type(node)
    if isinstance(node, ListConfig):
        keys: Iterable[Any] = range(len(node))
    else:
        keys = [field.name for field in fields(schema)] if is_dataclass(schema) else list(node)
    for key in keys:
        child: Any = node._get_node(key, validate_access=False)
        if child is None or child._is_missing():
            yield f"{prefix}{key}"
        elif isinstance(child, (DictConfig, ListConfig)) and not child._is_none() and not child._is_interpolation():
            yield from _unset_keys(child, f"{prefix}{key}.")


def _refuse_values_out_of_range(node: DictConfig, prefix: str) -> None:
    for key in map(str, node):
        child = node._get_node(key)
        if isinstance(child, DictConfig) and not child._is_none():
            _refuse_values_out_of_range(child, f"{prefix}{key}.")
    schema = OmegaConf.get_type(node)
    if not (isinstance(schema, type) and issubclass(schema, Options)):
        return
    values = cast(dict[str, Any], OmegaConf.to_container(node, resolve=True))
    for name, value, wanted in schema.faults({stated.name: values[stated.name] for stated in schema.stated()}):
        key = f"{prefix}{name}"
        source = _SCALAR.fullmatch(str(node._get_node(name)))  # the user typed the scalar that the option is set from
        said = f"{source.group(1)}={value}: it must be {wanted} for {key}" if source else None
        raise UsageError(said or f"{key}={value}: it must be {wanted}")


def to_plain(config: DictConfig) -> dict[str, Any]:
    """Return the configuration as dictionaries, lists and scalars, which checkpoints and loggers can hold.

    ``_partial_``, which a YAML of a user's own may have, is left out: every class is treated as if it were set.
    """
    plain = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    return {key: without_partial(node) for key, node in plain.items()}
