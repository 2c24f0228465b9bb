"""Lipschitz constants, each theorem a pure function of weights that cites its proof; one family of layers a file."""

from lipformer.theorems.dot_product import dot_product_bound_on_ball, dot_product_local_bound
from lipformer.theorems.heads import combine_heads
from lipformer.theorems.l2 import (
    MatrixNorm,
    block_norm,
    kim_bound_2,
    kim_bound_inf,
    tied_l2_bound,
    tied_l2_bound_2,
    tied_l2_bound_blocks,
    tied_l2_bound_inf,
    tied_l2_bound_mixed,
)
from lipformer.theorems.l2_head import head_constant, local_mass, mean_distance, phi_inverse, row_distance
from lipformer.theorems.normalisations import (
    act_norm_bound,
    center_norm_bound,
    layer_norm_bound,
    layer_norm_row_sum_bound,
    rms_norm_bound,
)
from lipformer.theorems.pointwise import activation_bound, linear_bound
from lipformer.theorems.similarity import (
    cosine_bound,
    elu_kernel_bound_on_ball,
    qk_norm_bound_on_ball,
    relu_kernel_bound_on_ball,
    sigmoid_bound_on_ball,
)
from lipformer.theorems.softmax import (
    SOFTMAX_BOUND,
    softmax_block_bound,
    softmax_block_bound_centered,
    softmax_jacobian_g,
    softmax_jacobian_norm,
)

__all__ = [
    "SOFTMAX_BOUND",
    "MatrixNorm",
    "act_norm_bound",
    "activation_bound",
    "block_norm",
    "center_norm_bound",
    "combine_heads",
    "cosine_bound",
    "dot_product_bound_on_ball",
    "dot_product_local_bound",
    "elu_kernel_bound_on_ball",
    "head_constant",
    "kim_bound_2",
    "kim_bound_inf",
    "layer_norm_bound",
    "layer_norm_row_sum_bound",
    "linear_bound",
    "local_mass",
    "mean_distance",
    "phi_inverse",
    "qk_norm_bound_on_ball",
    "relu_kernel_bound_on_ball",
    "rms_norm_bound",
    "row_distance",
    "sigmoid_bound_on_ball",
    "softmax_block_bound",
    "softmax_block_bound_centered",
    "softmax_jacobian_g",
    "softmax_jacobian_norm",
    "tied_l2_bound",
    "tied_l2_bound_2",
    "tied_l2_bound_blocks",
    "tied_l2_bound_inf",
    "tied_l2_bound_mixed",
]
