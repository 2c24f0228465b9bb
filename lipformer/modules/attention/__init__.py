"""Self-attention, one kind a file, all with the same signature and each with its Lipschitz constant."""

from lipformer.modules.attention.contractive_l2 import ContractiveL2Attention
from lipformer.modules.attention.dot_product import DotProductAttention
from lipformer.modules.attention.l2 import L2Attention
from lipformer.modules.attention.tied_l2 import TiedL2Attention

__all__ = ["ContractiveL2Attention", "DotProductAttention", "L2Attention", "TiedL2Attention"]
