r"""The value path of L2 attention, computed as products of weights: these cost little beside products with tokens.

Legend: D width, H heads, d columns of a query head, v columns of a value head, s the divisor of the squared
distances.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from lipformer.functional.heads import split_inputs, split_outputs
from lipformer.functional.precision import at_least_float32


def value_maps(
    query_weight: Float[Tensor, "C D"], value_weight: Float[Tensor, "E D"], heads: int, s: float
) -> Float[Tensor, "H d v"]:
    r"""Value maps :math:`M_h = W_h^{Q\top} W^V_h / s`: the values X A_h W^V_h of Kim et al. equal (X W^Q_h) M_h.

    The weights are in ``nn.Linear`` layout. The product is computed in float32 or float64, also under autocast.
    """
    with torch.autocast(query_weight.device.type, enabled=False):
        query, value = at_least_float32(query_weight), at_least_float32(value_weight)
        return split_outputs(query, heads).mT @ split_outputs(value, heads) / s


def head_outputs(maps: Float[Tensor, "H d v"], out_weight: Float[Tensor, "D E"]) -> Float[Tensor, "H d D"]:
    """Maps N_h = M_h W^O_h from the attention-weighted mean of head h to the output, in the precision of ``maps``."""
    with torch.autocast(maps.device.type, enabled=False):
        return maps @ split_inputs(out_weight, maps.shape[0]).to(maps.dtype)
