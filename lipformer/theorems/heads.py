"""The constant of a layer from those of its heads."""

import torch
from jaxtyping import Float
from torch import Tensor

from lipformer.functional import spectral


def combine_heads(constants: Float[Tensor, "*batch H"], out: Float[Tensor, "E D"]) -> Float[Tensor, "*batch"]:
    r"""Constant of :math:`X \mapsto [F_1(X), \dots, F_H(X)]\, W^O` in the 2-norm or the mixed norm.

    .. math:: \min\Big\{ \|W^O\|_2 \Big(\sum_h L_h^2\Big)^{1/2},\ \sum_h \|W^O_h\|_2\, L_h \Big\}

    Args:
        constants: L_h, of each head.
        out: W^O, used as ``y W^O``; its E rows belong to the heads in turn, W^O_h to head h.

    References: none; ours, docs/mathematics.md, 12.
    """
    blocks = out.unflatten(0, (constants.shape[-1], -1))
    together = spectral.exact(out) * torch.linalg.vector_norm(constants, dim=-1)
    return torch.minimum(together, (spectral.exact(blocks) * constants).sum(-1))
