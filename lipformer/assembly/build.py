"""Build the objects that a configuration describes, and check what a configuration from a file names."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pytorch_lightning.callbacks import Callback
from torch import nn
from torch.optim import Optimizer

from lipformer.config import MODEL_GROUPS, keys_read
from lipformer.config.targets import factory, locate
from lipformer.errors import CheckpointError, UsageError
from lipformer.options.data import DataOptions

CALLBACKS = "callbacks"
"""The group that holds any number of callbacks, each under a name of its own."""
LOADER_KEYS = tuple(DataOptions.defaults())
"""Options of the group `data` that the loader takes; the corpus takes the others."""
TRUSTED = ("lipformer", "torch.nn", "torch.optim")
"""The packages whose classes a checkpoint may name without being allowed to."""


def build_model(config: Mapping[str, Any], vocabulary_size: int) -> nn.Module:
    """Build the model a configuration describes.

    Its class is called as ``Class(vocabulary_size, **options)``, with the keys and groups of the root that the group
    ``model`` says it reads, and with that group's own options. It maps ids (B, N) to logits (B, N, V); the logits of a
    position depend only on the tokens up to it. `lipformer.modules.contracts` says what else a model may have.

    Args:
        config: the plain configuration of a run.
        vocabulary_size: symbols that can be predicted, V.

    Raises:
        UsageError: a class refuses its options.
    """
    own = {key: value for key, value in config["model"].items() if key != "reads"}
    keys = keys_read(config["model"])
    options = {key: factory(config[key], key) if key in MODEL_GROUPS else config[key] for key in keys}
    try:
        return factory(own, "model")(vocabulary_size, **options)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the model cannot be built: {error}") from error


def build_corpus(data: Mapping[str, Any]) -> Any:
    """Build the corpus from the group ``data``, which also holds the options of the loader (`LOADER_KEYS`).

    Raises:
        UsageError: the corpus refuses its options.
    """
    options = {name: value for name, value in data.items() if name not in LOADER_KEYS}
    try:
        return factory(options, "data")()
    except (TypeError, ValueError) as error:
        raise UsageError(f"data: {error}") from error


def build_callbacks(nodes: Mapping[str, Mapping[str, Any]]) -> list[Callback]:
    """Build the callbacks of a run, in the order in which the group names them.

    Raises:
        UsageError: one of them is not a Lightning callback, or its class refuses its options.
    """
    built = []
    for name, node in nodes.items():
        key = f"{CALLBACKS}.{name}"
        if node is None:  # callbacks.samples=null leaves it out, as ~callbacks.samples does
            continue
        if not isinstance(node, Mapping) or "_target_" not in node:
            raise UsageError(
                f"{key}: it names no class; choose callbacks=stability, or give {key}._target_=<package.Class>"
            )
        make = factory(node, key)
        try:
            callback = make()
        except (TypeError, ValueError) as error:
            raise UsageError(f"{key}: {error}") from error
        if not isinstance(callback, Callback):
            raise UsageError(f"{key}._target_={node['_target_']}: it is no Lightning callback")
        built.append(callback)
    return built


def check_targets(config: Mapping[str, Any], allow: Sequence[str], where: str, groups: Iterable[str] = ()) -> None:
    """Refuse a configuration from a file in which a group names anything but an object of its kind.

    To check the beginning of the name is not enough: ``lipformer.x.os.system`` begins with an allowed package too. So
    the object that the name leads to must be of the group's kind and be *defined* in an allowed package; and a package
    is imported only after its name was allowed.

    Args:
        config: the plain configuration found in a checkpoint.
        allow: packages the user trusts besides ``lipformer``, ``torch.nn`` and ``torch.optim``.
        where: the file, for messages.
        groups: the groups that are built, besides those of the model and the corpus.

    Raises:
        CheckpointError: a target is not allowed, or cannot be imported.
    """
    trusted = (*TRUSTED, *allow)

    def inside(name: str) -> bool:
        return _is_inside(name, trusted)

    nodes = {group: config[group] for group in (*_groups_of_a_model(config), *groups) if group != CALLBACKS}
    if CALLBACKS in groups:
        callbacks = config[CALLBACKS]
        if not isinstance(callbacks, Mapping) or not all(isinstance(name, str) for name in callbacks):
            raise CheckpointError(f"{where}: its callbacks are no group of names; the file was altered")
        nodes.update({f"{CALLBACKS}.{name}": node for name, node in callbacks.items() if node is not None})
    for group, node in nodes.items():
        if group.startswith(f"{CALLBACKS}.") and not isinstance(node, Mapping):
            raise CheckpointError(f"{where}: {group} is no group of options; the file was altered")
        target = node["_target_"]
        if not isinstance(target, str) or not inside(target):
            raise CheckpointError(
                f"{where}: {group} names {target!r}, which is outside the trusted packages; if you trust it, add "
                f"its package: allow_targets=[{str(target).split('.')[0]}]"
            )
        try:
            found = locate(target, group)
        except UsageError as error:
            raise CheckpointError(f"{where}: {error}") from error
        kind, is_right_kind = KINDS[group.partition(".")[0]]
        if not is_right_kind(found) or not inside(found.__module__):
            raise CheckpointError(
                f"{where}: {group} names {target!r}, which is no {kind} of the trusted packages; the file was altered"
            )


def targets_outside(config: Mapping[str, Any]) -> list[str]:
    """Return the packages, besides those trusted anyway, that must be allowed for the model and corpus to be built.

    Args:
        config: a plain configuration that `check_targets` has passed.
    """
    targets = [config[group]["_target_"] for group in _groups_of_a_model(config)]
    return sorted({target.partition(".")[0] for target in targets if not _is_inside(target, TRUSTED)})


def _groups_of_a_model(config: Mapping[str, Any]) -> list[str]:
    return ["model", *(key for key in keys_read(config["model"]) if key in MODEL_GROUPS), "data"]


def _is_inside(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def is_module(found: object) -> bool:
    """Return whether an imported object can be a part of a model."""
    return inspect.isclass(found) and issubclass(found, nn.Module)


def is_function_of(home: str) -> Callable[[Any], bool]:
    """Return a check whether an imported object is a function; one of lipformer must be of the module `home`.

    Other functions of lipformer and of torch could write files or end processes, with options that a checkpoint
    chooses.
    """

    def is_right(found: Any) -> bool:
        if not inspect.isfunction(found):
            return False
        return found.__module__ == home or found.__module__.partition(".")[0] not in ("lipformer", "torch")

    return is_right


def is_linear_rule(found: object) -> bool:
    """Return whether an imported object is a function whose first argument is annotated as an ``nn.Linear``."""
    if not inspect.isfunction(found):
        return False
    parameters = list(inspect.signature(found).parameters.values())
    return bool(parameters) and parameters[0].annotation in (nn.Linear, "nn.Linear")


def is_corpus(found: object) -> bool:
    """Return whether an imported object is a class with the methods of a `Corpus`."""
    return inspect.isclass(found) and all(callable(getattr(found, method, None)) for method in ("lines", "source"))


def is_callback(found: object) -> bool:
    """Return whether an imported object is a class of Lightning callbacks."""
    return inspect.isclass(found) and issubclass(found, Callback)


def is_optimizer(found: object) -> bool:
    """Return whether an imported object is a class of optimizers."""
    return inspect.isclass(found) and issubclass(found, Optimizer)


KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("model", *MODEL_GROUPS), ("module class", is_module)),
    "linear": ("function of a linear map", is_linear_rule),
    "data": ("corpus class", is_corpus),
    "optimizer": ("optimizer class", is_optimizer),
    "schedule": ("schedule function", is_function_of("lipformer.training.schedules")),
    "regularizer": ("regularizer function", is_function_of("lipformer.training.regularizers")),
    "logger": ("logger function", is_function_of("lipformer.training.loggers.choices")),
    CALLBACKS: ("callback class", is_callback),
}
