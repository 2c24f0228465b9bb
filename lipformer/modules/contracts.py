"""What a part of a model can state about itself, and what the rest of the library then does with it.

A part needs nothing but ``forward``: it trains, is evaluated and is reported. Everything else is a method that it has
or lacks (the protocols), or a plain value (the functions, which know what counts where nothing is stated). A class
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
    """Any part: knows how far its output can move when its input does.

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
    """A branch that is not Lipschitz, but on tokens of bounded size it is.

    A part that lacks it gets no finite bound in a ``PreNorm`` where its own is infinite.
    """

    @abstractmethod
    def lipschitz_bound_on_ball(
        self, radius: float | Tensor, p: Norm = 2, length: int | None = None
    ) -> Float[Tensor, ""]:
        """Upper bound on tokens of Euclidean norm at most ``radius``; other arguments as for :class:`Lipschitz`."""


@runtime_checkable
class BoundedOutput(Protocol):
    """A normalisation that knows the size of what it returns.

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
    """A layer of the trunk, a residual, that can be inverted, or can be where its parts are such.

    Whether it can is up to the instance (its normalisation, its share of a branch), so ask `inversion_obstacle` rather
    than ``isinstance``. With a layer that lacks it a model has neither ``invert`` nor ``log_det``, and telemetry
    measures no inverse of that layer.
    """

    @abstractmethod
    def inversion_obstacle(self) -> str:
        """Why this instance, as it is now, has no inverse: one clause that names the part; "" where it has one."""

    @abstractmethod
    def invert(self, y: Float[Tensor, "B N D"], **options: Any) -> "Solution":
        """Return the x of a y, with how it was found; options of `lipformer.modules.fixed_point.solve`."""

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

    A layer that lacks it has no entropies and largest weights in ``stability/``, and ``regularizer=jasmin`` passes it
    by.
    """

    @abstractmethod
    def attention_weights(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B H N N"]:
        """What token i (row) takes from token j (column), before dropout; none negative, 0 where it is not seen."""


@runtime_checkable
class HasScores(Protocol):
    """Attention whose weights are made of scores.

    A layer that lacks it has no ``logit_variance`` in ``stability/``. One that takes a softmax of the scores derives
    from :class:`~lipformer.modules.attention.scored.SoftmaxAttention`, and gets the norm of its softmax Jacobian too.
    """

    @abstractmethod
    def attention_scores(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B H N N"]:
        """Scores of all pairs of tokens, before the mask, up to a constant of each row."""


@runtime_checkable
class NamesItsMaps(Protocol):
    """A branch whose linear maps are not just the weights of its children: divided, multiplied, made of others.

    Of one that lacks it telemetry takes the norms of its children of class ``nn.Linear``.
    """

    @abstractmethod
    def linear_maps(self) -> dict[str, Tensor]:
        """The matrices as the forward pass uses them, by name, each (out, in) as in ``nn.Linear``."""


@runtime_checkable
class TwoPaths(Protocol):
    """A layer with a fused path and an explicit one, chosen by the attribute ``fused``, a plain bool that can be set.

    The one protocol with an attribute, for `lipformer.modules.contexts.explicit` sets it. Of a layer that lacks it the
    only path has to be differentiable twice for local constants, log-determinants and ``regularizer=jacobian``.
    """

    fused: bool


@runtime_checkable
class HasTrunk(Protocol):
    """A language model in three steps: ``embed``, ``trunk``, and a module ``unembedding`` from features to logits.

    A model that lacks it has no certificate, no local constants, and of ``stability/`` gradients, parameters and
    updates only.
    """

    @abstractmethod
    def embed(self, ids: Int[Tensor, "B N"]) -> Float[Tensor, "B N D"]:
        """Return the embedded tokens of symbols: vectors, which can move where ids cannot."""

    @abstractmethod
    def trunk(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Map embedded tokens to features."""


# --- plain values, and what counts where nothing is stated ----------------------------------------------------------


def lipschitz_bound(part: object, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
    """The bound that a part states (:class:`Lipschitz`), infinity where it states none."""
    if isinstance(part, Lipschitz):
        return part.lipschitz_bound(p, length)
    return torch.tensor(math.inf, dtype=torch.float64)


def output_radius(layer: object) -> Float[Tensor, ""]:
    """The radius that a normalisation states (:class:`BoundedOutput`), infinity where it states none."""
    return layer.output_radius() if isinstance(layer, BoundedOutput) else torch.tensor(math.inf, dtype=torch.float64)


def inversion_obstacle(layer: object) -> str:
    """Why a layer of the trunk, as it is now, has no inverse; "" where it has one (:class:`Invertible`)."""
    if isinstance(layer, Invertible):
        return layer.inversion_obstacle()
    return f"{type(layer).__name__} is not invertible: build the model with residual=invertible"


def caveat(part: object) -> str:
    """``caveat``, one clause beside the part's bound in a certificate; "" where nothing is stated."""
    return str(getattr(part, "caveat", ""))


def longest_input(part: object) -> int | None:
    """``longest_input``, the longest sequence accepted, in tokens; None, no limit, where nothing is stated."""
    return getattr(part, "longest_input", None)


def context(model: object) -> int | None:
    """``context``, the longest sequence a model was built for, in tokens; None where nothing is stated."""
    return getattr(model, "context", None)


def causal(attention: object) -> bool:
    """``causal``, whether no token attends to a later one; True where nothing is stated, as the model asks for."""
    return bool(getattr(attention, "causal", True))


def weight_methods(part: object) -> tuple[str, ...]:
    """``weight_methods``, names of methods without arguments that depend on the parameters alone.

    An inverse calls them once instead of once an iteration (`lipformer.modules.contexts.constant_weights`); none where
    nothing is stated.
    """
    return tuple(getattr(part, "weight_methods", ()))


def branch_scale(residual: object) -> float | Tensor:
    """``branch_scale``, what a residual multiplies its branch by, over what it multiplies the skip connection by.

    A number, (), or one for each channel, (D,); 1 where nothing is stated. Telemetry's ``branch_gain`` is of the
    branch times it.
    """
    return getattr(residual, "branch_scale", 1.0)


def normalises_output(residual: object) -> bool:
    """``normalises_output``, whether a residual's output has been through its normalisation.

    If one has not, or states nothing, the model puts a normalisation behind the last block.
    """
    return bool(getattr(residual, "normalises_output", False))


def chain(block: object) -> tuple[str, ...]:
    """``chain``, names of the children that a block applies one after the other, and does nothing else.

    Each is then a layer of its own (`lipformer.modules.walk`): a row of the certificate, a name in the metrics. A block
    that states nothing is one layer, which answers for itself.
    """
    return tuple(getattr(block, "chain", ()))


def joined_heads(attention: object) -> tuple[int, nn.Linear] | None:
    """``heads``, H, and the projection ``out`` that reads their outputs side by side; None where they are not stated.

    Heads that are joined by anything but a bias-free ``nn.Linear`` have no local constants of their own.
    """
    heads, out = getattr(attention, "heads", None), getattr(attention, "out", None)
    if not isinstance(heads, int) or not isinstance(out, nn.Linear) or out.bias is not None:
        return None
    return heads, out
