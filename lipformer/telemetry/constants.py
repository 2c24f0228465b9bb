"""The expensive measurements: norms of weights, local Lipschitz constants, and how exactly invertible layers invert."""

import warnings
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lipformer.bounds.empirical import model_constants
from lipformer.functional import spectral
from lipformer.functional.spectral import Norm
from lipformer.modules.contexts import constant_weights, eval_mode
from lipformer.modules.contracts import Invertible, InvertibleNormalisation, NamesItsMaps
from lipformer.modules.fixed_point import NotConvergedWarning
from lipformer.modules.walk import TRUNK_ROLES, Passage
from lipformer.runs.metric_names import TRUNK

ITERATIONS = 2
"""Steps of each ascent to a local Lipschitz constant; the next ascent continues from where this one ended."""
CONTRACTION_STEPS = 8
"""Steps of the fixed-point iteration that a contraction rate is measured over."""
MOST_ITERATIONS = 200
"""Limit on the iterations of a layer's inverse; if it has not converged by then, the reconstruction error shows it."""


@torch.no_grad()
def weight_norms(branch: nn.Module) -> dict[str, Float[Tensor, ""]]:
    """Return the exact operator norms of each linear map of a branch, ``<map>_norm_2`` and ``<map>_norm_inf``.

    A branch may state its maps itself (`lipformer.modules.contracts.NamesItsMaps`): the matrices as its forward pass
    uses them, divided where it divides them, and the queries' times the temperature. Of any other branch the maps are
    the weights of its children of class ``nn.Linear`` (query, key, value, out; expand, contract).

    Args:
        branch: of a residual.
    """
    maps: dict[str, Tensor]
    if isinstance(branch, NamesItsMaps):
        maps = branch.linear_maps()
    else:
        maps = {name: child.weight for name, child in branch.named_children() if isinstance(child, nn.Linear)}
    found = {}
    for name, weight in maps.items():
        found[f"{name}_norm_2"] = spectral.exact(weight)
        found[f"{name}_norm_inf"] = spectral.inf_norm(weight)
    return found


def weight_norms_by_layer(passed: Mapping[str, Passage]) -> dict[str, Float[Tensor, ""]]:
    """Return `weight_norms` of all branches, each under ``<branch>/<map>_norm_<p>``.

    Args:
        passed: what `lipformer.telemetry.layers.pass_through` returned.
    """
    branches = {name: passage.place.module for name, passage in passed.items() if passage.place.role == "branch"}
    return {
        f"{name}/{norm}": value for name, branch in branches.items() for norm, value in weight_norms(branch).items()
    }


class LocalConstants:
    """Follows the local Lipschitz constants of a model's layers during a training.

    Each measurement starts from the direction that the one before has found, so that a few steps of ascent are enough
    while the weights change slowly. Every value is a lower bound of the constant.

    Args:
        model: has ``embed`` and ``trunk``; it is measured in eval mode.
        p: 2, ``math.inf`` or "mixed".
        iterations: steps of the ascent from each of two starts, the direction before and a random one.
    """

    def __init__(self, model: nn.Module, p: Norm, iterations: int = ITERATIONS):
        self._model, self._p, self._iterations = model, p, iterations
        self._directions: dict[str, Tensor] = {}

    def measure(self, ids: Int[Tensor, "B N"]) -> dict[str, Float[Tensor, ""]]:
        """Return each layer's largest constant over the sentences, as ``<layer>/local_lipschitz``.

        Args:
            ids: sentences of equal length.
        """
        with eval_mode(self._model):
            constants = model_constants(
                self._model, ids, self._p, starts=self._directions, restarts=1, max_iterations=self._iterations
            )
        found = {name: constant.direction for name, constant in constants.items()}
        self._directions.update({name: v for name, v in found.items() if v.isfinite().all()})
        return {f"{name}/local_lipschitz": constant.value.amax() for name, constant in constants.items()}


@torch.no_grad()
def inversion_statistics(model: nn.Module, passed: Mapping[str, Passage]) -> dict[str, Float[Tensor, ""] | float]:
    """Measure how fast and how exactly the invertible residuals of a model are inverted.

    Args:
        model: in eval mode.
        passed: what `lipformer.telemetry.layers.pass_through` returned; its first sentence is inverted.

    Returns:
        ``<layer>/contraction_rate`` (`contraction_rate`) and ``<layer>/reconstruction_error``, the largest entry of
        abs(x' - x), where x' is the inverse of the layer's output, computed in the precision of the model. Also
        ``trunk/reconstruction_error`` if every layer of the trunk is invertible. Empty in half precision.
    """
    found: dict[str, Tensor | float] = {}
    if TRUNK not in passed or passed[TRUNK].x.dtype.itemsize < 4:
        return found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)  # the error shows it
        for name, passage in passed.items():
            layer, x, y = passage.place.module, passage.x[:1], passage.y[:1]
            if passage.place.role not in TRUNK_ROLES or not isinstance(layer, Invertible) or layer.inversion_obstacle():
                continue
            parts = dict(layer.named_children())
            if "branch" in parts and isinstance(norm := parts.get("norm"), InvertibleNormalisation):
                with constant_weights(parts["branch"]):
                    found[f"{name}/contraction_rate"] = contraction_rate(parts["branch"], norm.invert(y))
            solution = layer.invert(y, max_iterations=MOST_ITERATIONS)
            found[f"{name}/reconstruction_error"] = (solution.x - x).abs().amax()
        if found and isinstance(model, Invertible) and not model.inversion_obstacle():
            trunk = passed[TRUNK]
            solution = model.invert(trunk.y[:1], max_iterations=MOST_ITERATIONS)
            found[f"{TRUNK}/reconstruction_error"] = (solution.x - trunk.x[:1]).abs().amax()
    return found


@torch.no_grad()
def contraction_rate(f: Callable[[Tensor], Tensor], y: Float[Tensor, "B N D"], steps: int = CONTRACTION_STEPS) -> float:
    r"""Return the mean factor by which the steps of the iteration x <- y - f(x) shrink.

    .. math:: (\|\delta_K\| / \|\delta_1\|)^{1/(K - 1)}, \qquad \delta_k = x_k - x_{k-1},\quad x_0 = y

    The norms are Euclidean, over the whole batch. K is at most ``steps``, and counts only steps that are larger than
    the rounding error of x. The rate is at most the branch's Lipschitz constant in the 2-norm; the smaller it is, the
    fewer iterations an inverse really takes.

    Args:
        f: the contractive branch.
        y: where the iteration starts: the residual's output, with its normalisation undone.
        steps: the most steps that are taken.

    Returns:
        The rate; nan where fewer than two steps are larger than the rounding error.
    """
    floor = torch.linalg.vector_norm(y) * (16 * torch.finfo(y.dtype).eps)
    x, sizes = y, []
    for _ in range(steps):
        after = y - f(x)
        sizes.append(torch.linalg.vector_norm(after - x))
        x = after
    lengths = torch.stack(sizes).tolist()
    kept = next((k for k, size in enumerate(lengths) if not size > floor), len(lengths))
    return (lengths[kept - 1] / lengths[0]) ** (1 / (kept - 1)) if kept >= 2 else float("nan")
