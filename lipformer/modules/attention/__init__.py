"""Self-attention, one kind a file, all with the same signature and each with its Lipschitz constant."""

from lipformer.modules.attention.contractive_l2 import ContractiveL2Attention
from lipformer.modules.attention.contractive_l2_blocks import ContractiveL2BlocksAttention
from lipformer.modules.attention.contractive_l2_decoupled import ContractiveL2DecoupledAttention
from lipformer.modules.attention.cosine import CosineAttention
from lipformer.modules.attention.dot_product import DotProductAttention
from lipformer.modules.attention.kernel import KernelAttention
from lipformer.modules.attention.l2 import L2Attention
from lipformer.modules.attention.qk_norm import QKNormAttention
from lipformer.modules.attention.sigmoid import SigmoidAttention
from lipformer.modules.attention.tied_l2 import TiedL2Attention

__all__ = [
    "ContractiveL2Attention",
    "ContractiveL2BlocksAttention",
    "ContractiveL2DecoupledAttention",
    "CosineAttention",
    "DotProductAttention",
    "KernelAttention",
    "L2Attention",
    "QKNormAttention",
    "SigmoidAttention",
    "TiedL2Attention",
]
