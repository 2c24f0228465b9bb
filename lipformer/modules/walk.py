"""One walk over a model: its parts by name and role, and the tensors that pass through them.

Certificate, telemetry, optimisation groups, local constants and the model's own bound and inverse all take a model
apart by :func:`walk`, so that a layer has one name in all of them. Like :mod:`lipformer.modules.contracts` this file
imports torch and the contracts alone, and every layer of the library may import it.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

from torch import Tensor, nn

from lipformer.modules.contracts import chain

Role = Literal[
    "embedding",
    "position",
    "block",
    "layer",
    "residual",
    "branch",
    "norm",
    "part",
    "stack",
    "final_norm",
    "unembedding",
    "other",
    "trunk",
]
"""The role of a module in its model.

========================  ==============================================================================================
embedding, position       the model's children of these names
block                     within ``blocks``: applies layers one after the other, and does nothing else
layer, residual           of the trunk, in its order; a residual has a child ``branch``
branch, norm, part        the residual's children of these names; any other child of a layer or residual
stack, final_norm         behind the blocks; a stack applies several, each with this role
unembedding               from features to logits
other                     any other child of the model, such as the network of a model without ``blocks``
trunk                     from embedded tokens to features: the whole, which :func:`walk` has no place for
========================  ==============================================================================================
"""

UNEMBEDDING: Final = "unembedding"
"""Name and role of the map from features to logits."""

TRUNK_ROLES = ("layer", "residual", "final_norm")
"""Roles of the layers that are applied one after the other, from the embedded tokens to the features."""


@dataclass(frozen=True)
class Place:
    """A module at its place in a model; a module that is applied in two places has two.

    Attributes:
        name: as in ``model.named_modules(remove_duplicate=False)``.
        module: the module at this place.
        role: its role there.
    """

    name: str
    module: nn.Module
    role: Role


def walk(model: nn.Module) -> Iterator[Place]:
    """Yield the places of a model in the order of the computation, each before its own parts.

    ``blocks`` and ``final_norm`` are taken apart if they only apply layers one after the other: a plain
    ``nn.Sequential``, or a module that names its layers (`lipformer.modules.contracts.chain`). A block that names none
    is one layer.

    Args:
        model: any; those of its children have a role of their own that are named ``embedding``, ``position``,
            ``blocks``, ``final_norm`` or ``unembedding``, as those of a ``CharTransformer`` are.

    Raises:
        AttributeError: a ``chain`` names what the block does not have.
    """
    children = children_of(model)
    for name, role in BEFORE.items():
        if name in children:
            yield Place(name, children[name], role)
    for name, child in children.items():
        if name not in (*BEFORE, "blocks", "final_norm", UNEMBEDDING):
            yield Place(name, child, "other")
    if "blocks" in children:
        yield from _trunk(children["blocks"])
    if "final_norm" in children:
        for name, module, whole in _unfold("final_norm", children["final_norm"]):
            yield Place(name, module, "final_norm" if whole else "stack")
    if UNEMBEDDING in children:
        yield Place(UNEMBEDDING, children[UNEMBEDDING], UNEMBEDDING)


def _trunk(blocks: nn.Module) -> Iterator[Place]:
    for name, module, whole in _unfold("blocks", blocks):
        if not whole:
            if name != "blocks":
                yield Place(name, module, "block")
            continue
        children = children_of(module)
        yield Place(name, module, "residual" if "branch" in children else "layer")
        roles = INSIDE if "branch" in children else {}
        for child in sorted(children, key=[*roles, *children].index):  # branch, normalisation, others
            yield Place(f"{name}.{child}", children[child], roles.get(child, "part"))


def _unfold(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module, bool]]:
    """Yield name, module and whether it is one layer: first a stack or block, then what it applies."""
    stack = isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward
    inner = tuple(children_of(module)) if stack else chain(module)
    yield name, module, not (stack or inner)
    for child in inner:
        yield from _unfold(f"{name}.{child}", module.get_submodule(child))


def children_of(module: nn.Module) -> dict[str, nn.Module]:
    """All children by name; ``named_children`` has one that stands in two places only once."""
    return {name: child for name, child in module._modules.items() if child is not None}


@dataclass(frozen=True)
class Passage:
    """What passed a place: its module's first argument and output."""

    place: Place
    x: Tensor
    y: Tensor


@contextmanager
def watching(places: Iterable[Place]) -> Iterator[dict[str, Passage]]:
    """Yield a dictionary that records, by name, the last passage of each place while the context lasts.

    Of a module in several places, each call belongs to the next of these, in the given order. Calls that take or return
    no tensor are left out.
    """
    passed: dict[str, Passage] = {}

    def record(own: list[Place]) -> Callable[[nn.Module, tuple[object, ...], object], None]:
        turns = itertools.cycle(own)

        def hook(module: nn.Module, arguments: tuple[object, ...], output: object) -> None:
            place = next(turns)
            if arguments and isinstance(arguments[0], Tensor) and isinstance(output, Tensor):
                passed[place.name] = Passage(place, arguments[0], output)

        return hook

    by_module: dict[nn.Module, list[Place]] = {}
    for place in places:
        by_module.setdefault(place.module, []).append(place)
    handles = [module.register_forward_hook(record(own)) for module, own in by_module.items()]
    try:
        yield passed
    finally:
        for handle in handles:
            handle.remove()


BEFORE: dict[str, Role] = {"embedding": "embedding", "position": "position"}
INSIDE: dict[str, Role] = {"branch": "branch", "norm": "norm"}
