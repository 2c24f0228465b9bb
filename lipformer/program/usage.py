"""Explain the errors of Hydra's composition in one line that names the remedy."""

import re

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import OverrideParseException
from omegaconf import DictConfig

from lipformer.config import choices_by_option, conf_dir
from lipformer.config.moved import SCHEMAS
from lipformer.config.renamed import RENAMED
from lipformer.config.suggestions import suggest


def explain(error: BaseException, config_name: str) -> str:
    """Return one line that says what is wrong on the command line and what to type instead.

    Args:
        error: the exception that Hydra raised.
        config_name: ``train`` or ``evaluate``.
    """
    text = " ".join(str(error).split()).split(" See https://hydra.cc")[0].split(" Config search path")[0]
    if found := re.match(r"UsageError raised while resolving interpolation: (.*?)(?: full_key: .*)?$", text):
        return found.group(1)  # of a resolver of ours
    cause = " ".join(str(error.__cause__).split()) if error.__cause__ is not None else ""
    if found := re.search(r"Could not override '([^']+)'", text):
        key = found.group(1)
        return f"unknown key {key}{_nearest(key, config_name)}"
    if found := re.search(r"Could not append to config\. An item is already at '([^']+)'", text):
        return f"{found.group(1)} exists already: write it without the +"
    if found := re.search(r"Ambiguous value for argument '([^']+)'", text):
        return f"{found.group(1)}: several values make a sweep, add -m (or quote the value)"
    if found := re.search(r"Could not find '([^']+)/([^']+)'(?: Available options in '[^']+': (.*))?", text):
        group, choice, options = found.groups()
        names = (options or "").split()
        return f"{group}={choice}: no such choice{suggest(choice, names)}; {group} has {', '.join(names)}"
    if (found := re.search(r"Could not load 'schema/([^']+)'", text)) and found.group(1) in SCHEMAS:
        return f"/schema/{found.group(1)}: the schema is named /schema/{SCHEMAS[found.group(1)]} now"
    if found := re.search(r"Error merging override (\S+)", text):
        return f"{found.group(1)}: {_type_error(cause, config_name)}"
    if found := re.search(r"In '([^']+)': .*Key '([^']+)' not in '\w+' full_key: (\S+)", text):
        file, key, full_key = found.groups()
        if key == "_partial_":
            return f"{file}.yaml: leave out _partial_: every class of a group is called where the model needs it"
        return f"{file}.yaml: unknown key {full_key}{_nearest(full_key, config_name)}"
    if isinstance(error, OverrideParseException):
        key, _, value = error.override.partition("=")
        quoted = f"'{key}=\"{value or 'value'}\"'"
        return f"{error.override}: {text}: write key=value, and quote a value that holds = , or brackets: {quoted}"
    return f"{text}{': ' + cause if cause and cause not in text else ''}"


def _type_error(cause: str, config_name: str) -> str:
    if found := re.match(r"Key '([^']+)' not in '\w+'.*full_key: (\S+)", cause):
        return f"unknown key {found.group(2)}{_nearest(found.group(2), config_name)}"
    return re.sub(r" ?(full_key|object_type|reference_type).*", "", cause)


def _nearest(key: str, config_name: str) -> str:
    if key in RENAMED[config_name]:
        return f": it is written {RENAMED[config_name][key]} now"
    having = choices_by_option(config_name)
    if key in having:  # an option of another choice of the group
        return f": it is an option of {', '.join(having[key])}"
    other, own = "evaluate" if config_name == "train" else "train", _keys_of(config_name)
    if key not in own and key in _keys_of(other):
        return f": it is a key of {other}.py"
    return suggest(key, [*own, *having])


def _keys_of(config_name: str) -> list[str]:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return _keys(compose(config_name), "")


def _keys(node: DictConfig, prefix: str) -> list[str]:
    names = []
    for key in map(str, node):
        names.append(f"{prefix}{key}")
        child = node._get_node(key)
        if isinstance(child, DictConfig) and not child._is_none() and not child._is_interpolation():
            names += _keys(child, f"{prefix}{key}.")
    return names
