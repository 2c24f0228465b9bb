"""Lower bounds of Lipschitz constants, measured. None of them is a certificate."""

from lipformer.bounds.empirical.ascent import Ascent, ascend
from lipformer.bounds.empirical.constructions import dominant_token, steepest_token, two_clusters
from lipformer.bounds.empirical.local import LocalConstant, climb, local_lipschitz, pairwise_ratios
from lipformer.bounds.empirical.parts import FromEmbedding, Head, head_constants, model_constants

__all__ = [
    "Ascent",
    "FromEmbedding",
    "Head",
    "LocalConstant",
    "ascend",
    "climb",
    "dominant_token",
    "head_constants",
    "local_lipschitz",
    "model_constants",
    "pairwise_ratios",
    "steepest_token",
    "two_clusters",
]
