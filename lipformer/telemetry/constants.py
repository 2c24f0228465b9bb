"""The dear measurements: norms of weights, local Lipschitz constants, and how well an invertible layer inverts."""

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
"""Of an ascent to a local constant; the next one goes on from where it ended."""
CONTRACTION_STEPS = 8
MOST_ITERATIONS = 200
"""Of the inverse of a layer; what has not converged by then shows in its error."""


@torch.no_grad()
def weight_norms(branch: nn.Module) -> dict[str, Float[Tensor, ""]]:
    """Return ``<name>_norm_2`` and ``<name>_norm_inf`` of each linear map of a branch, exactly.

    The maps are those the branch names itself, as it uses them (``linear_maps``, in ``nn.Linear`` layout: divided where
    it divides, with the temperature in the queries), else its children of class ``nn.Linear`` (query, key, value, out;
    expand, contract).
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


class LocalConstants:
    """Measures local Lipschitz constants again and again, each time from the direction found before.

    A few steps of the ascent are then enough to follow a constant while the weights change slowly; each value is a
    lower bound in any case.

    Args:
        model: a ``CharTransformer``; measured in eval mode.
        p: 2, ``math.inf`` or "mixed".
        iterations: steps of the ascent from each of two starts, the direction before and a random one.
    """

    def __init__(self, model: nn.Module, p: Norm, iterations: int = ITERATIONS):
        self._model, self._p, self._iterations = model, p, iterations
        self._directions: dict[str, Tensor] = {}

    def measure(self, ids: Int[Tensor, "B N"]) -> dict[str, Float[Tensor, ""]]:
        """Return the largest constant over the sentences, by the names of `bounds.empirical.model_constants`."""
        with eval_mode(self._model):
            constants = model_constants(
                self._model, ids, self._p, starts=self._directions, restarts=1, max_iterations=self._iterations
            )
        found = {name: constant.direction for name, constant in constants.items()}
        self._directions.update({name: v for name, v in found.items() if v.isfinite().all()})
        return {name: constant.value.amax() for name, constant in constants.items()}


@torch.no_grad()
def inversion_statistics(model: nn.Module, passed: Mapping[str, Passage]) -> dict[str, Float[Tensor, ""] | float]:
    """Return ``<layer>/contraction_rate`` and ``<layer>/reconstruction_error`` of the invertible residuals.

    And ``trunk/reconstruction_error``, where all layers are. The error is the largest entry of abs(x' - x), x' the
    inverse of the layer's output, in the precision of the model; in half precision nothing is measured.

    Args:
        model: in eval mode.
        passed: of `lipformer.telemetry.layers.pass_through`; of its sentences the first is inverted.
    """
    found: dict[str, Tensor | float] = {}
    if passed[TRUNK].x.dtype.itemsize < 4:
        return found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)  # it shows in the error
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
    r"""Mean factor by which a step of x <- y - f(x) is smaller than the one before, until rounding stops it.

    .. math:: (\|\delta_K\| / \|\delta_1\|)^{1/(K - 1)}, \qquad \delta_k = x_k - x_{k-1},\quad x_0 = y

    Euclidean over the whole batch, over at most ``steps`` steps, and only those above the rounding of x. At most the
    branch's constant in the 2-norm, if it has one, and by how much less says how fast inverses really are.
    nan where fewer than two steps are above rounding.
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
