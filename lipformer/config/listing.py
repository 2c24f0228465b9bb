"""What ``--help`` shows: the groups and their choices, and every option with its value, meaning and range."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from lipformer.config.places import conf_dir
from lipformer.options import Options

OWN_TO_HYDRA = ("hydra",)
LAUNCHER = "hydra/launcher"
"""The group of the machines that a sweep's jobs run on, which Hydra has for both programs."""


def groups(program: str) -> list[Path]:
    """Return the folders of ``conf/`` that are groups of a program.

    Args:
        program: ``train``, or ``evaluate``, which has only the groups of studies and of sweeps.
    """
    folders = sorted(folder for folder in conf_dir().iterdir() if folder.is_dir() and folder.name not in OWN_TO_HYDRA)
    evaluate = ("study", "sweep")
    return [f for f in folders if (f.name in evaluate if program == "evaluate" else f.name != "study")]


def list_groups(program: str) -> str:
    """Return a line for each group of a program, ``train`` or ``evaluate``, with its choices."""
    choices = {group.name: sorted(f.stem for f in group.glob("*.yaml")) for group in groups(program)}
    launchers = ConfigStore.instance().list(LAUNCHER)
    choices[LAUNCHER] = sorted(name.removesuffix(".yaml") for name in launchers)
    return "\n".join(f"{group}: {', '.join(names)}" for group, names in choices.items())


def list_options(_root_: DictConfig) -> str:
    """Return the composed configuration as YAML, each option with its meaning as a comment.

    Args:
        _root_: the configuration, as OmegaConf hands it to a resolver.
    """
    lines = "\n".join([*_lines(_root_, skip=OWN_TO_HYDRA), *_launcher_lines(_root_)])
    return lines.replace("$", "$$")  # the text becomes part of a template, in which a $ begins a variable


def _launcher_lines(root: DictConfig) -> Iterator[str]:
    """Yield the options of the launcher, where it is one of ours."""
    launcher = OmegaConf.select(root, "hydra.launcher")
    schema = OmegaConf.get_type(launcher) if launcher is not None else None
    if isinstance(schema, type) and issubclass(schema, Options):
        yield from ("hydra:", "  launcher:")
        yield from (f"    {line}" for line in _lines(launcher))


def _lines(node: DictConfig, skip: tuple[str, ...] = ()) -> Iterator[str]:
    schema = OmegaConf.get_type(node)
    meanings = schema.meanings() if isinstance(schema, type) and issubclass(schema, Options) else {}
    values = cast(dict[str, Any], OmegaConf.to_container(node, resolve=False))
    stated: list[tuple[str, str]] = []
    for key, value in values.items():
        child = node._get_node(key)
        if key in skip:
            continue
        if isinstance(child, DictConfig) and value and isinstance(value, dict):
            stated += [(f"{key}:", meanings.get(key, "")), *((f"  {line}", "") for line in _lines(child))]
        else:
            stated.append((_written(key, value), meanings.get(key, "")))
    column = max((len(line) for line, meaning in stated if meaning), default=0)
    for line, meaning in stated:
        yield f"{line:{column}}  # {meaning}" if meaning else line


def _written(key: str, value: Any) -> str:
    if isinstance(value, list):
        return f"{key}: {json.dumps(value)}"
    return OmegaConf.to_yaml({key: value}).rstrip("\n")
