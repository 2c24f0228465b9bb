"""Attention by a product of positive features instead of a softmax, linear in the number of tokens."""

from typing import Unpack

from jaxtyping import Float
from torch import Tensor

from lipformer import theorems
from lipformer.functional.heads import merge_heads, split_heads
from lipformer.functional.kernel import FEATURES, kernel_attention, kernel_weights
from lipformer.functional.spectral import Norm
from lipformer.modules.attention.base import BoundedOnBall, FusedArguments, FusedAttention
from lipformer.options.attention import KernelOptions


class KernelAttention(BoundedOnBall, FusedAttention):
    r"""Multi-head kernel self-attention. Not Lipschitz, although its features are.

    .. math:: F(X) = [P^1 X W^V_1, \dots, P^H X W^V_H] W^O, \qquad
              P^h_{ij} = \frac{\phi(q_i) \cdot \phi(k_j)}{\epsilon + \sum_l \phi(q_i) \cdot \phi(k_l)}

    with phi = max(x, 0) or ELU(x) + 1 entry by entry. Rows sum to less than one: by a share eps of the denominator,
    all of it where no feature is positive (a token without a positive query gets zero, never nan). phi has slope one,
    yet a token that stays where it is while the others move away, with their values, has a derivative without limit.

    Arguments and errors as for :class:`~lipformer.modules.attention.base.Attention` and
    :class:`~lipformer.options.attention.KernelOptions`; weights are never dropped: the linear form has none.

    References: Katharopoulos et al. 2020, arXiv 2006.16236 (ELU + 1, the linear form). For both as a remedy of
        instability see docs/mathematics.md, 14.
    """

    caveat = "not Lipschitz: weights of a fixed token meet values without limit"

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        features: str = KernelOptions.features,
        eps: float = KernelOptions.eps,
        **common: Unpack[FusedArguments],
    ):
        super().__init__(width, heads, **common)
        KernelOptions.check(features=features, eps=eps)
        self.features, self.eps = features, eps
        self.project(width, query=width, key=width, value=width, out=width)

    def attend_fused(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch N D"]:
        """In O(N), without the N x N matrix."""
        mixed = kernel_attention(*self._featured(x), self.values(x), eps=self.eps, causal=self.causal)
        return self.out(merge_heads(mixed))

    def attention_weights(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N N"]:
        """P; each row sums to less than one."""
        return kernel_weights(*self._featured(x), eps=self.eps, causal=self.causal)

    def theorem_on_ball(
        self, weights: dict[str, Tensor], radius: float | Tensor, p: Norm, length: int
    ) -> Float[Tensor, ""]:
        """``theorems.relu_kernel_bound_on_ball`` or ``elu_kernel_bound_on_ball``."""
        if self.features == "relu":
            return theorems.relu_kernel_bound_on_ball(**weights, eps=self.eps, radius=radius, length=length, p=p)
        return theorems.elu_kernel_bound_on_ball(**weights, radius=radius, length=length, p=p)

    def _featured(self, x: Tensor) -> tuple[Tensor, Tensor]:
        phi = FEATURES[self.features]
        return phi(split_heads(self.query(x), self.heads)), phi(split_heads(self.key(x), self.heads))
