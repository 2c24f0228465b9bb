"""Penalties on how sensitive the network is: a function for each file of `conf/regularizer/`.

Each runs the model itself and returns its logits with the penalty, so that what the forward pass has computed need
not be computed twice. Padded positions count in no penalty.
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
"""Logits, and the penalty already times its weight; None where there is none."""


def no_regularizer(model: nn.Module, batch: Batch) -> Regularized:
    """Penalise nothing."""
    return model(batch.inputs), None


def jasmin(
    model: nn.Module, batch: Batch, *, weight: float = JasminOptions.weight, k: int = JasminOptions.k
) -> Regularized:
    r"""Penalise attention whose softmax is sensitive to its scores: :func:`jasmin_penalty`, mean over the layers.

    The layers' inputs are recorded while the model runs, by its fast path; only the attention weights are computed
    again, explicitly.

    Args:
        model: a ``CharTransformer`` whose attention takes a softmax of scores.
        batch: of sentences.
        weight, k: as in :class:`~lipformer.options.optimisation.JasminOptions` and `jasmin_penalty`.

    Raises:
        UsageError: the model has no attention, or one that takes no softmax.

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
    r"""The worst row of each head, on average over heads and sentences.

    .. math:: \frac{1}{BH} \sum_{b,h} \max_i \log g_1(P_i) \ \ (k = 0), \qquad
              \frac{1}{BH} \sum_{b,h} \max_i \log \frac{g_1(P_i)}{g_k(P_i)} \ \ (k \ge 2)

    with P_i the rows, and g_k(p) = p_(k) (1 - p_(k) + p_(k+1)), which bounds the k-th largest eigenvalue of the
    softmax's Jacobian J(p) = diag(p) - p p', order statistics from the largest. k = 0 has two minima: uniform rows
    (g_1 = 1/n) and, without limit, one-hot ones; k >= 2 asks for k + 1 equal largest entries and so only flattens.

    A row of n tokens has a J of rank n - 1. Rows with n <= k, whose k-th eigenvalue is zero whatever the weights, and
    of one token, whose J is zero, are left out: under a causal mask the first max(k, 1) of each sentence.

    Args:
        weights: rows of a softmax.
        k: 0, or the place from 2 on.
        rows: which of the rows count.
        causal: whether row i has i + 1 tokens, or all have N.

    Returns:
        0 for sentences without a row that counts. Each g is at least 1e-12, below which nothing is gained.

    References: Yudin et al. 2025, arXiv 2507.07814; the aggregation is that of public code, not seen in the paper.
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


def jacobian(
    model: nn.Module,
    batch: Batch,
    *,
    weight: float = JacobianOptions.weight,
    iterations: int = JacobianOptions.iterations,
) -> Regularized:
    r"""Penalise the local Lipschitz constant of the trunk, from embedded tokens to features, at the batch itself.

    .. math:: \frac{\lambda}{B} \sum_b \langle u_b, J_b v_b \rangle^2 \le \frac{\lambda}{B} \sum_b \|J_b\|_2^2

    with u, v after a few alternations of power iteration, constants to the derivative: where they have converged that
    is the derivative of the norm (Danskin), and before, that of a lower bound. The squared Frobenius norm would need
    no iteration, but sums over all N D directions, among them those of the skip connections, of which one is the
    Lipschitz constant. A network's norm, not its layers', for that is what a perturbed sentence meets. The trunk runs
    once more for it, by its explicit path in the precision of the weights.

    Args:
        model: a ``CharTransformer``: ``embed`` and ``trunk``.
        batch: of sentences.
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
