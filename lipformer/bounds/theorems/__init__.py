"""Lipschitz constants, each theorem a pure function of weights that cites its proof; one family of layers a file."""

from lipformer.bounds.theorems.l2 import (
    MatrixNorm,
    kim_bound_2,
    kim_bound_inf,
    phi_inverse,
    tied_l2_bound_2,
    tied_l2_bound_inf,
    tied_l2_bound_mixed,
)
from lipformer.bounds.theorems.norms import act_norm_bound, center_norm_bound, layer_norm_bound, rms_norm_bound
from lipformer.bounds.theorems.pointwise import activation_bound, linear_bound

__all__ = [
    "MatrixNorm",
    "act_norm_bound",
    "activation_bound",
    "center_norm_bound",
    "kim_bound_2",
    "kim_bound_inf",
    "layer_norm_bound",
    "linear_bound",
    "phi_inverse",
    "rms_norm_bound",
    "tied_l2_bound_2",
    "tied_l2_bound_inf",
    "tied_l2_bound_mixed",
]
