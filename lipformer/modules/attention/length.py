"""The length for which a contractive layer is normalised."""

from jaxtyping import Float
from torch import Tensor

from lipformer.functional.spectral import Norm
from lipformer.modules.attention.base import FusedAttention
from lipformer.modules.dropout import ContractiveDropout


class NormalisedForContext(FusedAttention):
    """Attention that is divided by a constant for sequences of up to ``context`` tokens; longer ones are refused.

    N is always ``context``, never the batch's length: else the output would depend on padding. Dropout is contractive
    in both modes (:class:`~lipformer.modules.dropout.ContractiveDropout`).
    """

    dropout_kind = ContractiveDropout

    @property
    def longest_input(self) -> int:
        """The largest number of tokens for which the constant is valid: ``context``."""
        return self.context

    def forward(self, x: Float[Tensor, "*batch N D"], *, fused: bool | None = None) -> Float[Tensor, "*batch N D"]:
        """Attend; ``fused=False`` is the explicit form, differentiable to any order.

        Raises:
            ValueError: the sequence is longer than ``context``.
        """
        self._check_length(x.shape[-2])
        return super().forward(x, fused=fused)

    def lipschitz_bound(self, p: Norm = 2, length: int | None = None) -> Float[Tensor, ""]:
        """Upper bound on the Lipschitz constant, of the weights that the forward pass uses, divided as it divides them.

        Arguments as for `Attention.lipschitz_bound`.

        Raises:
            ValueError: ``length`` is above ``context``.
        """
        self._check_length(self.context if length is None else length)
        return super().lipschitz_bound(p, length)

    def _check_length(self, length: int) -> None:
        if length > self.context:
            raise ValueError(
                f"a sequence of {length} tokens is longer than the context of {self.context} "
                "for which contractive attention is normalised"
            )
