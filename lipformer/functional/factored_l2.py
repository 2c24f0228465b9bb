r"""Tied L2 attention in which each head has its own temperature and value map.

.. math:: F(X) = [P^1 X U_1 V_1, \dots, P^H X U_H V_H]\, O, \qquad
          P^h_{ij} \propto e^{-\tau_h \|x_i U_h - x_j U_h\|_2^2}

Legend: N tokens, D width, H heads, d columns of a head, U_h queries, V_h value map, O output, tau_h temperature.
"""

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from lipformer.functional.attention import l2_scores, masked_softmax, penalise_distance
from lipformer.functional.fused import fused_tied_l2
from lipformer.functional.heads import merge_heads, split_heads
from lipformer.functional.precision import at_least_float32
from lipformer.functional.value_path import head_outputs


def attend(
    x: Float[Tensor, "*batch N D"],
    query: Float[Tensor, "H D d"],
    value_map: Float[Tensor, "H d d"],
    out: Float[Tensor, "D E"],
    log_temperature: Float[Tensor, " H"],
    *,
    causal: bool,
    fused: bool,
    slope: Float[Tensor, " H"] | None = None,
) -> Float[Tensor, "*batch N D"]:
    """Apply factored L2 attention.

    Args:
        x: tokens.
        query: the U_h.
        value_map: the V_h.
        out: O, in ``nn.Linear`` layout.
        log_temperature: logarithms of the tau_h.
        causal: whether token i sees only tokens 0..i, or all.
        fused: whether to use ``scaled_dot_product_attention``; the explicit form is differentiable to any order.
        slope: m_h, of a penalty of m_h (i - j) on the scores of past tokens; with ``causal`` only.
    """
    # The queries are multiplied by the root of the temperature; the values, which are the queries too, are divided by
    # it.
    root = root_temperature(log_temperature)
    value_map = value_map / root
    weight = (query.mT * root).flatten(0, 1).to(query.dtype)
    if fused:
        return fused_tied_l2(x, weight, head_outputs(value_map, out), s=1.0, causal=causal, slope=slope)
    values = split_heads(linear(x, weight), query.shape[0])
    weights = masked_softmax(factored_scores(x, query, log_temperature, slope), causal)
    mixed = weights.to(values.dtype) @ (values @ value_map.to(values.dtype))
    return linear(merge_heads(mixed), out.to(mixed.dtype))


def factored_scores(
    x: Float[Tensor, "*batch N D"],
    query: Float[Tensor, "H D d"],
    log_temperature: Float[Tensor, " H"],
    slope: Float[Tensor, " H"] | None = None,
) -> Float[Tensor, "*batch H N N"]:
    """Scores before the mask, up to a constant in each row; the arguments are those of :func:`attend`."""
    weight = (query.mT * root_temperature(log_temperature)).flatten(0, 1).to(query.dtype)
    origin = x[..., :1, :].detach()  # distances do not depend on the origin, but their rounding does
    queries = split_heads(linear(x - origin, weight), query.shape[0])
    scores = l2_scores(queries, queries, 1.0)
    return scores if slope is None else penalise_distance(scores, slope)


def root_temperature(log_temperature: Float[Tensor, " H"]) -> Float[Tensor, "H 1 1"]:
    """Return the roots of the temperatures, clamped to [e^-40, e^40] so that they and their inverses are finite."""
    return (at_least_float32(log_temperature).clamp(-40, 40) / 2).exp()[:, None, None]
