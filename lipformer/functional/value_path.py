r"""The value path of L2 attention as products of weights, small beside products with tokens.

Legend: D width, H heads, d columns of a query head, v of a value head, s the divisor of the squared
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
    r"""Value maps :math:`M_h = W_h^{Q\top} W^V_h / s`, so that Kim's values X A_h W^V_h are (X W^Q_h) M_h.

    Weights come in ``nn.Linear`` layout. Computed at least in float32, whatever autocast says.
    """
    with torch.autocast(query_weight.device.type, enabled=False):
        query, value = at_least_float32(query_weight), at_least_float32(value_weight)
        return split_outputs(query, heads).mT @ split_outputs(value, heads) / s


def head_outputs(maps: Float[Tensor, "H d v"], out_weight: Float[Tensor, "D E"]) -> Float[Tensor, "H d D"]:
    """Maps N_h = M_h W^O_h from what head h gathered straight to the output, in the precision of ``maps``."""
    with torch.autocast(maps.device.type, enabled=False):
        return maps @ split_inputs(out_weight, maps.shape[0]).to(maps.dtype)
