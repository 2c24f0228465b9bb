"""What a part of a model can state about itself, and what the library does with it.

A part needs only ``forward``: with it, it trains, is evaluated and is reported. Everything else is an optional method
(the protocols), or a plain value (the functions, which return a default if the part does not state it). A class
keeps a contract by having its methods; to derive from the protocol as well is optional, and lets Python refuse a class
that forgot one.

Each protocol holds for any device and dtype; bounds are float64 scalars, ``math.inf`` where there is no theorem, never
nan. Legend: B sentences, N tokens, D width, H heads; p is 2, ``math.inf`` or "mixed".

Protocols have methods only. From Python 3.12 ``isinstance`` looks for their members without calling ``__getattr__``,
where torch keeps parameters, buffers and submodules; such a member would count on 3.11 and not on 3.12.

This file and :mod:`lipformer.modules.walk` import torch and `lipformer.functional.spectral` alone, so that every layer
of the library, the ones below ``modules`` among them, can ask by the same names.
"""

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lipformer.functional.spectral import Norm

if TYPE_CHECKING:
    from lipformer.modules.fixed_point import Solution


# --- methods --------------------------------------------------------------------------------------------------------


@runtime_checkable
class Lipschitz(Protocol):
    """A part with a bound on its Lipschitz constant.

    A part that lacks it has the bound ``math.inf``, and so have the residual around it and the model: the certificate
    says which part it was, and every certified radius is 0.
    """

    @abstractmethod
    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        r"""Upper bound L with :math:`\|f(x) - f(y)\|_p \le L \|x - y\|_p`, of the mode (train or eval) it is in.

        Args:
            p: 2 (Euclidean over all N D entries), ``math.inf`` (largest entry) or "mixed" (largest Euclidean norm of a
                token), the same for input and output.
            length: N for which it holds, shorter ones included; None for the ``context`` the part was built with.
        """


@runtime_checkable
class LipschitzOnBall(Protocol):
    """A branch that is Lipschitz on tokens of bounded size, though perhaps not on all.

    A part that lacks it gets no finite bound in a ``PreNorm`` where its own is infinite.
    """

    @abstractmethod
    def lipschitz_bound_on_ball(
        self, radius: float | Tensor, p: Norm = 2, length: int | None = None
    ) -> Float[Tensor, ""]:
        """Upper bound on tokens of Euclidean norm at most ``radius``; other arguments as for :class:`Lipschitz`."""


@runtime_checkable
class BoundedOutput(Protocol):
    """A normalisation with a bound on the size of its output tokens.

    A part that lacks it counts as unbounded: a branch behind it that is Lipschitz on a ball only has no finite bound.
    """

    @abstractmethod
    def output_radius(self) -> Float[Tensor, ""]:
        """Largest Euclidean norm of an output token, in the units of the tokens; infinite if there is none."""


@runtime_checkable
class Contractive(Protocol):
    """A branch f with a Lipschitz constant below 1 in some norm, so that x + f(x) has an inverse.

    A part that lacks it is refused by ``residual=invertible``.

    References: Behrmann et al. 2019 (i-ResNet), arXiv 1811.00995, Theorem 1.
    """

    @abstractmethod
    def contraction_bound(self) -> Float[Tensor, ""]:
        """Upper bound of the constant in the norm in which the branch contracts, which may be one of its own."""


@runtime_checkable
class Invertible(Protocol):
    """A residual in the trunk that can be inverted, depending on its parts.

    Whether it can depends on the instance (its normalisation, its share of a branch), so ask `inversion_obstacle`
    rather than ``isinstance``. With a layer that lacks it a model has neither ``invert`` nor ``log_det``, and telemetry
    measures no inverse of that layer.
    """

    @abstractmethod
    def inversion_obstacle(self) -> str:
        """Return why this instance has no inverse at present, in a clause that names the part; "" if it has one."""

    @abstractmethod
    def invert(self, y: Float[Tensor, "B N D"], **options: Any) -> "Solution":
        """Return the input x of an output y; the options are those of `lipformer.modules.fixed_point.solve`."""

    @abstractmethod
    def log_det(self, x: Float[Tensor, "B N D"], **options: Any) -> Float[Tensor, " B"]:
        """log|det dy/dx| of each sequence, in nats; options of `lipformer.modules.log_det.log_det`."""


@runtime_checkable
class InvertibleNormalisation(Protocol):
    """A normalisation with an inverse in closed form.

    A normalisation that lacks it is refused by ``residual=invertible``.

    References: Kingma, Dhariwal 2018 (Glow), arXiv 1807.03039, sec. 3.1.
    """

    @abstractmethod
    def invert(self, y: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Return the x of a y."""

    @abstractmethod
    def log_det(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, " B"]:
        """log|det dy/dx| of each sequence, in nats."""


@runtime_checkable
class Attends(Protocol):
    """Attention that shows its weights.

    A layer that lacks it has no entropies and largest weights in ``stability/``, and ``regularizer=jasmin`` ignores
    it.
    """

    @abstractmethod
    def attention_weights(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B H N N"]:
        """Return the weight of token j (column) for token i (row), before dropout: at least 0, and 0 if masked."""


@runtime_checkable
class HasScores(Protocol):
    """Attention whose weights are computed from scores.

    A layer that lacks it has no ``logit_variance`` in ``stability/``. One that takes a softmax of the scores derives
    from :class:`~lipformer.modules.attention.scored.SoftmaxAttention`, and gets the norm of its softmax Jacobian too.
    """

    @abstractmethod
    def attention_scores(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B H N N"]:
        """Return the scores of all pairs of tokens, before the mask, up to a constant in each row."""


@runtime_checkable
class NamesItsMaps(Protocol):
    """A branch whose linear maps differ from the weights of its children, because it divides or combines them.

    For a branch that lacks it telemetry measures the norms of its children of class ``nn.Linear``.
    """

    @abstractmethod
    def linear_maps(self) -> dict[str, Tensor]:
        """Return the matrices that the forward pass uses, by name, each (out, in) as in ``nn.Linear``."""


@runtime_checkable
class TwoPaths(Protocol):
    """A layer with a fused path and an explicit one, chosen by the attribute ``fused``, a plain bool that can be set.

    It is the only protocol with an attribute, because `lipformer.modules.contexts.explicit` sets it. The path of a
    layer that lacks it must be twice differentiable for local constants, log-determinants and ``regularizer=jacobian``.
    """

    fused: bool


@runtime_checkable
class HasTrunk(Protocol):
    """A language model in three steps: ``embed``, ``trunk``, and a module ``unembedding`` from features to logits.

    A model that lacks it has no certificate and no local constants, and only gradients, parameters and updates in
    ``stability/``.
    """

    @abstractmethod
    def embed(self, ids: Int[Tensor, "B N"]) -> Float[Tensor, "B N D"]:
        """Return the embedded tokens of symbols: vectors, which can move where ids cannot."""

    @abstractmethod
    def trunk(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Map embedded tokens to features."""


# --- plain values, and what counts where nothing is stated ----------------------------------------------------------


def lipschitz_bound(part: object, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
    """Return the bound that a part states (:class:`Lipschitz`), or infinity."""
    if isinstance(part, Lipschitz):
        return part.lipschitz_bound(p, length)
    return torch.tensor(math.inf, dtype=torch.float64)


def output_radius(layer: object) -> Float[Tensor, ""]:
    """Return the radius that a normalisation states (:class:`BoundedOutput`), or infinity."""
    return layer.output_radius() if isinstance(layer, BoundedOutput) else torch.tensor(math.inf, dtype=torch.float64)


def inversion_obstacle(layer: object) -> str:
    """Return why a layer of the trunk has no inverse at present; "" if it has one (:class:`Invertible`)."""
    if isinstance(layer, Invertible):
        return layer.inversion_obstacle()
    return f"{type(layer).__name__} is not invertible: build the model with residual=invertible"


def caveat(part: object) -> str:
    """Return ``caveat``, a clause that stands beside the bound of a part in a certificate; "" by default."""
    return str(getattr(part, "caveat", ""))


def longest_input(part: object) -> int | None:
    """Return ``longest_input``, the longest sequence that is accepted, in tokens; None, no limit, by default."""
    return getattr(part, "longest_input", None)


def context(model: object) -> int | None:
    """Return ``context``, the longest sequence that a model was built for, in tokens; None by default."""
    return getattr(model, "context", None)


def causal(attention: object) -> bool:
    """Return ``causal``, whether no token attends to a later one; True by default, as the model asks for it."""
    return bool(getattr(attention, "causal", True))


def weight_methods(part: object) -> tuple[str, ...]:
    """Return ``weight_methods``, names of methods without arguments that depend on the parameters alone; () by default.

    An inverse calls them once, not in every iteration (`lipformer.modules.contexts.constant_weights`).
    """
    return tuple(getattr(part, "weight_methods", ()))


def branch_scale(residual: object) -> float | Tensor:
    """Return ``branch_scale``, a residual's factor of the branch over its factor of the skip connection; 1 by default.

    It is one number, (), or one for each channel, (D,). Telemetry multiplies the branch by it for ``branch_gain``.
    """
    return getattr(residual, "branch_scale", 1.0)


def normalises_output(residual: object) -> bool:
    """Return ``normalises_output``, whether the output of a residual is normalised; False by default.

    If it is not, the model adds a normalisation after the last block.
    """
    return bool(getattr(residual, "normalises_output", False))


def chain(block: object) -> tuple[str, ...]:
    """Return ``chain``, the names of the children that a block applies one after the other and without more.

    Each child is then a layer (`lipformer.modules.walk`), with a row in the certificate and a name in the metrics. A
    block that does not state it is one layer, whose own bound counts.
    """
    return tuple(getattr(block, "chain", ()))


def joined_heads(attention: object) -> tuple[int, nn.Linear] | None:
    """Return ``heads``, H, and the projection ``out`` of their concatenated outputs; None if they are not stated.

    Heads that are joined by anything but an ``nn.Linear`` without bias have no local constants of their own.
    """
    heads, out = getattr(attention, "heads", None), getattr(attention, "out", None)
    if not isinstance(heads, int) or not isinstance(out, nn.Linear) or out.bias is not None:
        return None
    return heads, out
