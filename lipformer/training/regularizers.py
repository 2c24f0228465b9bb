"""Penalties on the sensitivity of a network, one function for each file of `conf/regularizer/`.

Each function runs the model itself and returns its logits with the penalty, so that nothing of the forward pass is
computed twice. No penalty counts padded positions.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lipformer import theorems
from lipformer.bounds.empirical import climb
from lipformer.data.collate import IGNORE, Batch
from lipformer.errors import UsageError
from lipformer.functional.linearization import Linearization
from lipformer.functional.sequence_norms import norming_functional, steepest_point
from lipformer.modules import contracts
from lipformer.modules.attention.kernel import KernelAttention
from lipformer.modules.attention.sigmoid import SigmoidAttention
from lipformer.modules.contexts import explicit
from lipformer.modules.contracts import Attends, HasTrunk
from lipformer.options.optimisation import JacobianOptions, JasminOptions

Regularized = tuple[Float[Tensor, "B N V"], Float[Tensor, ""] | None]
"""The logits, and the penalty times its weight; None if there is no penalty."""


def no_regularizer(model: nn.Module, batch: Batch) -> Regularized:
    """Run the model without a penalty."""
    return model(batch.inputs), None


def jasmin(
    model: nn.Module, batch: Batch, *, weight: float = JasminOptions.weight, k: int = JasminOptions.k
) -> Regularized:
    r"""Penalise softmax attention that is sensitive to its scores, by the mean of `jasmin_penalty` over the layers.

    The model runs on its fast path while the inputs of its attention layers are recorded; from these the attention
    weights alone are computed again, explicitly.

    Args:
        model: a ``CharTransformer`` with softmax attention.
        batch: a batch of sentences.
        weight, k: as in :class:`~lipformer.options.optimisation.JasminOptions` and `jasmin_penalty`.

    Raises:
        UsageError: the model has no attention, or attention without a softmax.

    References: Yudin et al. 2025 (JaSMin), arXiv 2507.07814.
    """
    JasminOptions.check(weight=weight, k=k)
    recorded: list[tuple[Attends, Tensor]] = []
    layers = [module for module in model.modules() if isinstance(module, Attends)]
    if not layers or isinstance(layers[0], (SigmoidAttention, KernelAttention)):
        found = type(layers[0]).__name__ if layers else "no attention"
        raise UsageError(
            f"regularizer=jasmin penalises the softmax of attention, and the model has {found}; "
            "take an attention with a softmax, or regularizer=none"
        )
    handles = [
        layer.register_forward_pre_hook(lambda *call: recorded.append((call[0], call[1][0]))) for layer in layers
    ]
    try:
        logits = model(batch.inputs)
    finally:
        for handle in handles:
            handle.remove()
    real = batch.targets != IGNORE
    penalties = [
        jasmin_penalty(layer.attention_weights(x), k, real, causal=contracts.causal(layer)) for layer, x in recorded
    ]
    return logits, weight * torch.stack(penalties).mean()


def jasmin_penalty(
    weights: Float[Tensor, "B H N N"], k: int, rows: Bool[Tensor, "B N"], *, causal: bool
) -> Float[Tensor, ""]:
    r"""Return the penalty of the worst row of each head, averaged over heads and sentences.

    .. math:: \frac{1}{BH} \sum_{b,h} \max_i \log g_1(P_i) \ \ (k = 0), \qquad
              \frac{1}{BH} \sum_{b,h} \max_i \log \frac{g_1(P_i)}{g_k(P_i)} \ \ (k \ge 2)

    P_i are the rows, and g_k(p) = p_(k) (1 - p_(k) + p_(k+1)), where p_(k) is the k-th largest entry of p, bounds the
    k-th largest eigenvalue of the softmax's Jacobian J(p) = diag(p) - p p'. The penalty with k = 0 decreases towards
    two kinds of rows: uniform ones (g_1 = 1/n) and, without a lower limit, one-hot ones. That with k >= 2 is lowest
    where the k + 1 largest entries are equal, and so only flattens rows.

    The J of a row of n tokens has rank n - 1. Two kinds of rows are left out: those with n <= k, whose k-th eigenvalue
    is zero whatever the weights, and those of one token, whose J is zero. Under a causal mask these are the first
    max(k, 1) rows of each sentence.

    Args:
        weights: rows of a softmax.
        k: 0, or at least 2.
        rows: the rows that count, such as those that are not padding.
        causal: whether row i sees i + 1 tokens; else all rows see N.

    Returns:
        The penalty. Sentences in which no row counts add 0 to the mean. Each g is bounded below by 1e-12, where the
        logarithm stops falling.

    References: Yudin et al. 2025, arXiv 2507.07814; the maximum and the mean follow public code, not the paper.
    """
    length = weights.shape[-1]
    tokens = torch.arange(1, length + 1, device=weights.device) if causal else torch.tensor(length)
    rows = (rows & (tokens > max(k, 1)))[:, None]
    terms = theorems.softmax_jacobian_g(weights, 1).clamp_min(SMALLEST).log()
    if 2 <= k < length:
        terms = terms - theorems.softmax_jacobian_g(weights, k).clamp_min(SMALLEST).log()
    worst = terms.masked_fill(~rows, -torch.inf).amax(-1)
    return worst.where(rows.any(-1), 0.0).mean()


SMALLEST = 1e-12
"""Lower bound of the arguments of the logarithms."""


def jacobian(
    model: nn.Module,
    batch: Batch,
    *,
    weight: float = JacobianOptions.weight,
    iterations: int = JacobianOptions.iterations,
) -> Regularized:
    r"""Penalise the local Lipschitz constant of the trunk, from embedded tokens to features, at the training batch.

    .. math:: \frac{\lambda}{B} \sum_b \langle u_b, J_b v_b \rangle^2 \le \frac{\lambda}{B} \sum_b \|J_b\|_2^2

    J_b is the Jacobian at sentence b; u and v are the vectors of a few steps of power iteration, and are constants to
    the derivative. Once they have converged, the derivative is that of the norm (Danskin's theorem); before, it is that
    of a lower bound. The squared Frobenius norm would need no iteration, but it sums over all N D directions, of which
    the Lipschitz constant is one. The norm of the whole network is penalised, not those of its layers, because it is
    the whole network that a perturbed sentence passes. The trunk is run once more for it, on its explicit path and in
    the precision of the weights.

    Args:
        model: has ``embed`` and ``trunk``, as a ``CharTransformer`` has.
        batch: a batch of sentences.
        weight, iterations: as in :class:`~lipformer.options.optimisation.JacobianOptions`; an iteration costs about
            three backward passes.

    Raises:
        UsageError: the model has no ``embed`` and ``trunk``.

    References: Yoshida, Miyato 2017, arXiv 1705.10941 (the same of weights); Hoffman et al. 2019, arXiv 1908.02729
    (Frobenius norm of the network's Jacobian).
    """
    JacobianOptions.check(weight=weight, iterations=iterations)
    if not isinstance(model, HasTrunk):
        raise UsageError(
            f"regularizer=jacobian needs a model with embed and trunk, which {type(model).__name__} lacks; "
            "take regularizer=none"
        )
    logits = model(batch.inputs)
    real = (batch.targets != IGNORE)[..., None]
    with explicit(model), torch.autocast(batch.inputs.device.type, enabled=False):
        x = model.embed(batch.inputs)
        linear = Linearization(lambda tokens: model.trunk(tokens) * real, x)
        u = norming_functional(linear.jvp(steepest_point(torch.randn_like(x), 2)), 2)
        found = climb(linear, u, 2, tolerance=0.0, max_iterations=iterations)
        gain = linear.gain(found.functional, found.direction)
    return logits, weight * gain.square().mean()
