"""Base classes of the attention kinds: arguments, projections, and the bound that follows from a theorem."""

import inspect
import math
from typing import Required, TypedDict, Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipformer.functional.heads import check_heads, merge_heads, split_heads, split_outputs
from lipformer.functional.spectral import Norm, parse_norm
from lipformer.modules.dropout import ContractiveDropout, Dropout
from lipformer.options.attention import AttentionOptions


class AttentionArguments(TypedDict, total=False):
    """Keyword arguments that the constructor of each kind passes on to `Attention`."""

    context: Required[int]
    causal: bool
    dropout: float


class FusedArguments(AttentionArguments, total=False):
    """Keyword arguments that a kind with two forms passes on to `FusedAttention`."""

    fused: bool


def _complete_signature(kind: type) -> None:
    """Add the arguments that ``**`` passes on to a constructor's signature, for help and for the builder."""
    constructor = vars(kind)["__init__"]
    own = inspect.signature(constructor).parameters
    rest = [name for name, parameter in own.items() if parameter.kind is parameter.VAR_KEYWORD]
    if rest:
        above = next(vars(base)["__init__"] for base in kind.__mro__[1:] if "__init__" in vars(base))
        parameters = {**inspect.signature(above).parameters, **own}
        listed = [parameter for parameter in parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
        constructor.__signature__ = inspect.Signature(listed)


class Attention(nn.Module):
    """Multi-head self-attention, ``(B, N, D) -> (B, N, D)``.

    A kind defines how tokens attend to each other (`attention_weights`, perhaps `values`) and its Lipschitz constant
    (`theorem`). Its constructor names its own options and passes the others on; the signature of each kind lists all.

    Args:
        width: features of a token, D.
        heads: H, must divide D.
        context: longest sequence, N; the default length of bounds.
        causal: whether token i attends to tokens 0..i only (itself always). Padding on the right then needs no mask.
        dropout: probability of dropping an entry of the output.

    Raises:
        TypeError: an argument that the kind does not take.
        ValueError: ``heads`` does not divide ``width``, ``dropout`` is outside [0, 1), or an option is out of its
            range (`lipformer.options.attention`).
    """

    caveat = ""
    """What a reader of the bound should know, such as why no theorem holds."""
    dropout_kind: type[Dropout | ContractiveDropout] = Dropout
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    out: nn.Linear

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        context: int,
        causal: bool = True,
        dropout: float = 0.0,
        **unknown: object,
    ):
        if unknown:
            takes = ", ".join(inspect.signature(type(self)).parameters)
            raise TypeError(f"{type(self).__name__} takes no {', '.join(unknown)}; it takes {takes}")
        super().__init__()
        check_heads(width, heads)
        self.heads, self.context, self.causal = heads, context, causal
        self.dropout = self.dropout_kind(dropout)

    def __init_subclass__(cls, **keywords: object) -> None:
        super().__init_subclass__(**keywords)
        if "__init__" in vars(cls):
            _complete_signature(cls)

    def project(self, width: int, **columns: int) -> None:
        """Add a projection for each name, from tokens of `width` features to the given number of columns.

        They are initialised in the given order, Glorot-uniform over the *whole* matrix (all heads together). None has a
        bias: in tied queries and keys it cancels from the distances, and no theorem here allows for one.
        """
        for name, outputs in columns.items():
            linear = nn.Linear(width, outputs, bias=False)
            nn.init.xavier_uniform_(linear.weight)
            setattr(self, name, linear)

    def forward(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch N D"]:
        """Apply attention, differentiable to any order."""
        return self.drop(self.attend(x))

    def attend(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch N D"]:
        """Return the explicit form before dropout: values mixed by the weights, then the output map."""
        values = self.values(x)
        return self.out(merge_heads(self.mixing_weights(x).to(values.dtype) @ values))

    def values(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N d"]:
        """Return the values that each head mixes."""
        return split_heads(self.value(x), self.heads)

    def mixing_weights(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N N"]:
        """Return the weights by which values are mixed: `attention_weights`, unless some are dropped."""
        return self.attention_weights(x)

    def attention_weights(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N N"]:
        """Return the attention weights, before dropout."""
        raise NotImplementedError

    def drop(self, y: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch N D"]:
        """Apply dropout to the output."""
        return self.dropout(y)

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """Return an upper bound on the Lipschitz constant, differentiable, in float64; infinite if no theorem holds.

        In train mode dropout is included. Weights that are not finite give infinity, never nan.

        Args:
            p: 2, ``math.inf`` or "mixed".
            length: N for which the bound holds, shorter ones included; None for ``context``.
        """
        p = parse_norm(p)
        return self._with_dropout(self.theorem(p, self.context if length is None else length), p)

    def theorem(self, p: Norm, length: int) -> Float[Tensor, ""]:
        """Return the constant without dropout, as in `lipschitz_bound`; here infinity, as `caveat` explains."""
        return torch.tensor(math.inf, dtype=torch.float64, device=self.out.weight.device)

    def certified_weights(self) -> dict[str, Tensor]:
        """Return the four projections in float64, in the layout of the theorems, as matrices W of ``x W``.

        The first three have the shape (H, D, d), ``out`` has (E, D).
        """
        inputs = {"query": self.query, "key": self.key, "value": self.value}
        heads = {name: split_outputs(linear.weight.double(), self.heads) for name, linear in inputs.items()}
        return {**heads, "out": self.out.weight.double().mT}

    def dropout_constant(self, p: Norm) -> Tensor | float:
        """Return the Lipschitz constant of the dropout."""
        return self.dropout.lipschitz_constant()

    def _with_dropout(self, bound: Tensor, p: Norm) -> Tensor:
        # nan would pass as a bound in some comparisons.
        return (bound * self.dropout_constant(p)).nan_to_num(nan=math.inf, posinf=math.inf)


class FusedAttention(Attention):
    """Attention with a second form of the same function: a kernel that is faster than explicit matrices.

    Args:
        fused: whether ``forward`` uses it by default. The other arguments are those of `Attention`.
    """

    def __init__(
        self, width: int, heads: int, *, fused: bool = AttentionOptions.fused, **common: Unpack[AttentionArguments]
    ):
        super().__init__(width, heads, **common)
        self.fused = fused

    def forward(self, x: Float[Tensor, "*batch N D"], *, fused: bool | None = None) -> Float[Tensor, "*batch N D"]:
        """Apply attention; ``fused=False`` is the explicit form, differentiable to any order."""
        fused = self.fused if fused is None else fused
        return self.drop(self.attend_fused(x) if fused else self.attend(x))

    def attend_fused(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch N D"]:
        """Return the fast form, before dropout."""
        raise NotImplementedError


class BoundedOnBall(Attention):
    """Attention that has a Lipschitz constant on tokens of bounded norm, and perhaps none on all tokens."""

    def lipschitz_bound_on_ball(
        self, radius: float | Tensor, p: Norm = 2, length: int | None = None
    ) -> Float[Tensor, ""]:
        """Return an upper bound on the Lipschitz constant on tokens of Euclidean norm at most ``radius``, in float64.

        In train mode dropout is included.

        Args:
            radius: R.
            p: 2, ``math.inf`` or "mixed".
            length: N for which the bound holds, shorter ones included; None for ``context``.
        """
        p = parse_norm(p)
        length = self.context if length is None else length
        return self._with_dropout(self.theorem_on_ball(self.certified_weights(), radius, p, length), p)

    def theorem_on_ball(
        self, weights: dict[str, Tensor], radius: float | Tensor, p: Norm, length: int
    ) -> Float[Tensor, ""]:
        """Return the constant without dropout, from `certified_weights`."""
        raise NotImplementedError
