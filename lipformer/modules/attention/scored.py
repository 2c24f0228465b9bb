"""Base classes of attention whose weights are computed from scores."""

from jaxtyping import Float
from torch import Tensor, nn

from lipformer.functional.attention import masked_softmax


class ScoredAttention(nn.Module):
    """Attention whose weights are computed from scores, one number for each pair of tokens.

    A kind gives :meth:`attention_scores` and :meth:`weights_from_scores`, two steps so that whoever needs scores and
    weights (:mod:`lipformer.telemetry.attention`) computes each once.
    """

    causal: bool

    def attention_scores(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N N"]:
        """Scores of all pairs of tokens, before the mask."""
        raise NotImplementedError

    def weights_from_scores(self, scores: Float[Tensor, "*batch H N N"]) -> Float[Tensor, "*batch H N N"]:
        """Return the weights of the scores; 0 for tokens that are not attended to."""
        raise NotImplementedError

    def attention_weights(self, x: Float[Tensor, "*batch N D"]) -> Float[Tensor, "*batch H N N"]:
        """What each token attends to, before dropout; as in :meth:`weights_from_scores`."""
        return self.weights_from_scores(self.attention_scores(x))


class SoftmaxAttention(ScoredAttention):
    """Attention by a softmax of scores: each row of weights sums to one."""

    def weights_from_scores(self, scores: Float[Tensor, "*batch H N N"]) -> Float[Tensor, "*batch H N N"]:
        """Rows of the softmax, each token seeing itself and, if causal, only what came before."""
        return masked_softmax(scores, self.causal)
