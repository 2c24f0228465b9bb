"""The Lipschitz certificate of a whole model, a row for each layer."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from lipformer.bounds import theorems
from lipformer.bounds.compose import Bound, compose
from lipformer.functional.eval_mode import eval_mode
from lipformer.functional.spectral import Norm, parse_norm

NOTE = (
    "upper bounds for the real-number function that the weights define in eval mode; the rounding of a float32 "
    "or bfloat16 forward pass comes on top"
)
ROUNDING = 2.0**-40
"""Allowance in the totals for the float64 rounding within each row's norms, which is of the order of 2^-50."""
NOT_FINITE = "weights are not finite"
Role = Literal["trunk", "head", "part"]


@dataclass(frozen=True)
class Row:
    """A layer and its constant.

    Attributes:
        name: as in ``model.named_modules()``.
        kind: its class.
        bound: upper bound of its Lipschitz constant; ``math.inf`` where there is no theorem.
        role: ``trunk`` and ``head`` multiply into the totals; a ``part`` shows what the row above is made of.
        caveat: what to know about the bound; may be empty.
    """

    name: str
    kind: str
    bound: float
    role: Role
    caveat: str


@dataclass(frozen=True)
class Certificate:
    """What is certain about a model.

    Attributes:
        rows: the layers, in the order in which they are applied.
        trunk: bound from embedded tokens to the features before the head.
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
              \mathrm{Lip}_p(\text{logits}) \le \mathrm{Lip}_p(\text{head})\, \mathrm{Lip}_p(\text{trunk})

    over the residuals of all blocks and the final norm. Embedded tokens are those that enter the first block; to add
    a position changes no distance. Each layer answers for itself (``lipschitz_bound``), from the weights that its
    forward pass uses, in float64, with exact norms or such from above. It is the function of eval mode that is
    certified, also of a model in train mode, which stays in it.

    The bounds are those of real arithmetic. A forward pass in float32 adds rounding errors (relative size about 1e-6;
    in bfloat16 1e-2) that no Lipschitz constant covers.

    Args:
        model: has ``blocks``, ``final_norm`` and ``head``, as `lipformer.model.CharTransformer` has. A block that only
            applies some of its layers one after the other may name them, in this order, in ``chain``, and has a row for
            each; any other has one, of its own ``lipschitz_bound``.
        p: 2, ``math.inf`` or "mixed", also for the logits.
        length: longest sequence, in tokens; None for ``model.context``.

    Raises:
        TypeError: the model has no such parts.
        ValueError: unknown ``p``; ``length`` below 1, or above what the model reads.
    """
    norm = parse_norm(p)
    missing = [name for name in ("blocks", "final_norm", "head") if not hasattr(model, name)]
    if missing:
        raise TypeError(
            f"{type(model).__name__} has no {missing[0]}: certify takes a model of blocks, final_norm and head, and a "
            "layer by itself answers lipschitz_bound(p)"
        )
    parts: Any = model
    length = parts.context if length is None else length
    limit = getattr(model, "longest_input", None)
    if length < 1:
        raise ValueError(f"length must be at least 1, not {length}")
    if limit is not None and length > limit:
        raise ValueError(f"length={length}: the model reads at most {limit} tokens")
    with eval_mode(model):
        rows = [
            row
            for top in ("blocks", "final_norm")
            for name, layer in _layers(top, getattr(model, top))
            for row in _rows(name, layer, norm, length)
        ]
        head = _row("head", parts.head, "head", norm, length)
    return Certificate((*rows, head), _total(rows), _total([*rows, head]), norm, length)


def _layers(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Take apart what is nothing but layers one after the other: a stack, and a block that says so (``chain``)."""
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        chain = tuple(module._modules)  # named_children() has a layer that is applied twice only once
    else:
        chain = getattr(module, "chain", ())
    if not chain:
        yield name, module
        return
    for child in chain:
        yield from _layers(f"{name}.{child}", getattr(module, child))


def _rows(name: str, layer: nn.Module, p: Norm, length: int) -> Iterator[Row]:
    """A layer's row, and below a residual's those of its branch and norm."""
    whole = _row(name, layer, "trunk", p, length)
    yield whole
    if _is_residual(layer):
        for part in ("branch", "norm"):
            row = _row(f"{name}.{part}", getattr(layer, part), "part", p, length)
            if math.isinf(row.bound) and math.isfinite(whole.bound):
                row = replace(row, caveat=f"{row.caveat}; bounded here, where its inputs are")
            yield row


def _row(name: str, module: nn.Module, role: Role, p: Norm, length: int) -> Row:
    bound, caveat = _answer(module, p, length)
    return Row(name, type(module).__name__, bound, role, caveat)


def _answer(module: Any, p: Norm, length: int) -> tuple[float, str]:
    """A module's bound and caveat, never nan."""
    if not all(weight.isfinite().all() for weight in module.parameters()):
        return math.inf, NOT_FINITE
    if hasattr(module, "lipschitz_bound"):
        silent = [part for part in ("branch", "norm") if not hasattr(getattr(module, part, module), "lipschitz_bound")]
        if silent:
            return math.inf, f"no lipschitz_bound: {type(getattr(module, silent[0])).__name__}"
        return float(compose(module.lipschitz_bound(p, length))), str(getattr(module, "caveat", ""))
    for kind, bound in TORCH_BOUNDS.items():
        # A subclass may compute something else.
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return float(compose(bound(module, p))), ""
    return math.inf, "no lipschitz_bound"


def _is_residual(layer: nn.Module) -> bool:
    return hasattr(layer, "branch") and hasattr(layer, "norm")


def _total(rows: list[Row]) -> float:
    """The product of the rows that are not parts of others, with the allowance for their rounding."""
    if any(row.caveat == NOT_FINITE for row in rows):
        return math.inf  # a zero elsewhere does not make nan a constant
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
"""Modules of torch itself that have a constant, so that a model's own parts need not be wrapped for it."""
