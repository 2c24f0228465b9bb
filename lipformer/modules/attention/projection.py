"""The linear maps of an attention layer."""

from torch import nn


def projection(inputs: int, outputs: int) -> nn.Linear:
    """Bias-free linear map, Glorot-uniform over the *whole* matrix (all heads together).

    No bias: in queries and keys it cancels from the distances if tied, and no theorem here has one.
    """
    linear = nn.Linear(inputs, outputs, bias=False)
    nn.init.xavier_uniform_(linear.weight)
    return linear
