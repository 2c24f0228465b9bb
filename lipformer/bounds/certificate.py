"""The Lipschitz certificate of a whole model, a row for each layer."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from lipformer import theorems
from lipformer.functional.spectral import Norm, parse_norm
from lipformer.modules import contracts
from lipformer.modules.contexts import eval_mode
from lipformer.modules.contracts import HasTrunk, Lipschitz
from lipformer.modules.walk import TRUNK_ROLES, UNEMBEDDING, Place, children_of, walk
from lipformer.theorems.compose import Bound, compose

NOTE = (
    "upper bounds for the real-number function that the weights define in eval mode; the rounding of a float32 "
    "or bfloat16 forward pass comes on top"
)
ROUNDING = 2.0**-40
"""Factor in the totals that allows for the float64 rounding of the norms in each row, which is about 2^-50."""
NOT_FINITE = "weights are not finite"
Role = Literal["trunk", "unembedding", "part"]


@dataclass(frozen=True)
class Row:
    """A layer and its constant.

    Attributes:
        name: as in ``model.named_modules()``.
        kind: its class.
        bound: upper bound of its Lipschitz constant; ``math.inf`` where there is no theorem.
        role: ``trunk`` and ``unembedding`` multiply into the totals; a ``part`` shows what the row above is made of.
        caveat: what to know about the bound; may be empty.
    """

    name: str
    kind: str
    bound: float
    role: Role
    caveat: str


@dataclass(frozen=True)
class Certificate:
    """Upper bounds on the Lipschitz constants of a model and its layers.

    Attributes:
        rows: the layers, in the order in which they are applied.
        trunk: bound from embedded tokens to the features before the unembedding.
        logits: bound from embedded tokens to logits.
        p: the norm, 2, ``math.inf`` or "mixed".
        length: the longest sequence, in tokens, for which it holds.
    """

    rows: tuple[Row, ...]
    trunk: float
    logits: float
    p: Norm
    length: int

    def to_plain(self) -> dict[str, Any]:
        """Return dictionaries, lists and scalars for JSON, which has no infinity: it becomes ``"inf"``."""
        return {
            "p": _plain(self.p),
            "length": self.length,
            "trunk": _plain(self.trunk),
            "logits": _plain(self.logits),
            "of": NOTE,
            "rows": [{**asdict(row), "bound": _plain(row.bound)} for row in self.rows],
        }


@torch.no_grad()
def certify(model: nn.Module, p: Norm | str = "mixed", length: int | None = None) -> Certificate:
    r"""Bound how far a model's features and logits can move when its embedded tokens do.

    .. math:: \mathrm{Lip}_p(\text{trunk}) \le \prod_\ell \mathrm{Lip}_p(\ell), \qquad
              \mathrm{Lip}_p(\text{logits}) \le \mathrm{Lip}_p(\text{unembedding})\, \mathrm{Lip}_p(\text{trunk})

    over the residuals of all blocks and the final normalisation. Embedded tokens are those that enter the first block;
    to add a position changes no distance. Each layer gives its own bound (``lipschitz_bound``), from the weights that
    its forward pass uses, in float64, with norms that are exact or upper bounds. The function that is
    certified is that of eval mode; a model in train mode stays in it.

    The bounds are those of real arithmetic. A forward pass in float32 adds rounding errors (relative size about 1e-6;
    in bfloat16 1e-2) that no Lipschitz constant covers.

    Args:
        model: has ``blocks``, ``final_norm`` and ``unembedding``, as a ``CharTransformer`` has, and is taken apart by
            `lipformer.modules.walk`; or it has ``embed``, ``trunk`` and ``unembedding`` without blocks, as a recurrent
            network may: one row then stands for the trunk, with the model's own bound, infinite if it states none.
        p: 2, ``math.inf`` or "mixed", also for the logits.
        length: longest sequence, in tokens; None for ``model.context``.

    Raises:
        TypeError: the model has no such parts.
        ValueError: unknown ``p``; ``length`` below 1, or above what the model reads.
    """
    norm = parse_norm(p)
    children = children_of(model)
    whole = isinstance(model, HasTrunk) and "blocks" not in children
    needed = (UNEMBEDDING,) if whole else ("blocks", "final_norm", UNEMBEDDING)
    missing = [name for name in needed if name not in children]
    if missing:
        raise TypeError(
            f"{type(model).__name__} has no {missing[0]}: certify takes a model of blocks, final_norm and "
            "unembedding, or of embed, trunk and unembedding; a layer by itself answers lipschitz_bound(p)"
        )
    length = contracts.context(model) if length is None else length
    limit = contracts.longest_input(model)
    if length is None:
        raise ValueError(f"give a length: {type(model).__name__} states no context")
    if length < 1:
        raise ValueError(f"length must be at least 1, not {length}")
    if limit is not None and length > limit:
        raise ValueError(f"length={length}: the model reads at most {limit} tokens")
    with eval_mode(model):
        places = [Place("trunk", model, "trunk")] if whole else list(walk(model))
        rows = _rows(places, norm, length)
        last = _row(Place(UNEMBEDDING, children[UNEMBEDDING], UNEMBEDDING), UNEMBEDDING, norm, length)
    return Certificate((*rows, last), _total(rows), _total([*rows, last]), norm, length)


def _rows(places: list[Place], p: Norm, length: int) -> list[Row]:
    """Return a row for each layer of the trunk, each residual followed by its branch and normalisation."""
    rows: list[Row] = []
    bounded = False
    for place in places:
        if place.role in ("trunk", *TRUNK_ROLES):
            rows.append(_row(place, "trunk", p, length))
            bounded = math.isfinite(rows[-1].bound)
        elif place.role in ("branch", "norm"):
            row = _row(place, "part", p, length)
            if math.isinf(row.bound) and bounded:
                row = replace(row, caveat=f"{row.caveat}; bounded here, where its inputs are")
            rows.append(row)
    return rows


def _row(place: Place, role: Role, p: Norm, length: int) -> Row:
    bound, caveat = _answer(place.module, p, length)
    return Row(place.name, type(place.module).__name__, bound, role, caveat)


def _answer(module: nn.Module, p: Norm, length: int) -> tuple[float, str]:
    """Return the bound and the caveat of a module; the bound is never nan."""
    if not all(weight.isfinite().all() for weight in module.parameters()):
        return math.inf, NOT_FINITE
    if isinstance(module, Lipschitz):
        parts = [part for name, part in module.named_children() if name in ("branch", "norm")]
        silent = [part for part in parts if not isinstance(part, Lipschitz)]
        if silent:
            return math.inf, f"no lipschitz_bound: {type(silent[0]).__name__}"
        return float(compose(module.lipschitz_bound(p, length))), contracts.caveat(module)
    for kind, bound in TORCH_BOUNDS.items():
        # A subclass may compute something else.
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return float(compose(bound(module, p))), ""
    return math.inf, "no lipschitz_bound"


def _total(rows: list[Row]) -> float:
    """Return the product of the rows that are not parts of others, with the allowance for their rounding."""
    if any(row.caveat == NOT_FINITE for row in rows):
        return math.inf  # 0 times nan must not become 0
    bounds = [row.bound for row in rows if row.role != "part"]
    return float(compose(*bounds, 1 + len(bounds) * ROUNDING))


def _plain(value: Norm) -> Norm | str:
    return "inf" if value == math.inf else value


TORCH_BOUNDS: dict[type[nn.Module], Callable[[Any, Norm], Bound]] = {
    nn.Linear: lambda module, p: theorems.linear_bound(module.weight, p),
    nn.Identity: lambda module, p: 1.0,
    nn.Dropout: lambda module, p: 1.0,  # in eval mode
    nn.ReLU: lambda module, p: theorems.activation_bound("relu"),
}
"""Modules of torch with a known constant, so that a model can use them without a wrapper."""
