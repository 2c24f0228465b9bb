"""What is drawn of a record: its series by layer, without those that have no number."""

from collections.abc import Callable
from typing import Any

import numpy as np

from lipformer.runs.readings import layer_series
from lipformer.runs.record import RunRecord, Series

LARGEST = 1e250
"""What is drawn at the most; a larger value is drawn as an infinite one."""

ENTROPY = "entropy / log n"
RANGE = "max − min"
GAIN = "rms(branch) / rms(skip)"
GRADIENT = "Euclidean norm"
UPDATE = "‖update‖ / ‖parameters‖"
LIPSCHITZ = "Lipschitz constant"
"""What the quantities are called along an axis."""

TRUNK = "certificate/trunk/"


def finite(values: np.ndarray) -> np.ndarray:
    """Replace by nan, which is not drawn, what is no number or too large for an axis with margins."""
    return np.where(np.abs(values) < LARGEST, values, np.nan)


def infinite(values: np.ndarray) -> np.ndarray:
    """Return where a value is infinite, or too large to be drawn as another."""
    return values >= LARGEST


def has_numbers(series: Series) -> bool:
    """Return whether there is a value to draw."""
    return bool(np.isfinite(finite(series.values)).any())


def known(layers: dict[str, Series]) -> dict[str, Series]:
    """Leave out layers of which nothing is finite."""
    return {layer: series for layer, series in layers.items() if has_numbers(series)}


def learning_curves(record: RunRecord) -> dict[str, Series]:
    """Return what there is of the task's objective on ``train`` and ``valid``."""
    found = {}
    for name, metric in (("train", record.task.metric("train")), ("valid", record.task.metric("val"))):
        if metric in record.series and has_numbers(record.series[metric]):
            found[name] = record.series[metric]
    return found


def entropies(record: RunRecord) -> dict[str, Series]:
    """Return by block the entropy of its attention, as a share of the largest."""
    return _of_blocks(layer_series(record, "entropy_share"))


def mean_entropy(record: RunRecord) -> Series | None:
    """Return the mean over the layers of the entropy, as a share of the largest."""
    layers = known(layer_series(record, "entropy_share"))
    total = layers.pop("total", None)
    return total if total is not None else reduced(layers, np.nanmean)


def output_ranges(record: RunRecord) -> dict[str, Series]:
    """Return by block the largest entry of its output less the smallest."""
    highest, lowest = layer_series(record, "output_max"), layer_series(record, "output_min")
    found = {}
    for layer, high in highest.items():
        match layer.split("."):
            case ["blocks", number] if layer in lowest:
                low = lowest[layer]
                _, one, other = np.intersect1d(high.steps, low.steps, return_indices=True)
                values = finite(high.values)[one] - finite(low.values)[other]
                found[number] = Series(high.steps[one], high.tokens[one], values)
    return known(found)


def branch_gains(record: RunRecord, kind: str) -> dict[str, Series]:
    """Return by block what its ``attention``, or its ``feedforward``, adds to the skip, in units of the skip."""
    return _of_blocks(layer_series(record, "branch_gain"), kind)


def least_gain(record: RunRecord) -> Series | None:
    """Return the gain of the branch that adds the least."""
    return reduced(known(layer_series(record, "branch_gain")), np.nanmin)


def gradient_norms(record: RunRecord) -> dict[str, Series]:
    """Return the norm of the whole gradient ``before clipping`` and ``after``."""
    names = ("stability/total/gradient_norm", "train/gradient_norm")
    before = next((record.series[name] for name in names if name in record.series), None)
    after = record.series.get("stability/total/gradient_norm_clipped")
    return known({k: v for k, v in {"before clipping": before, "after": after}.items() if v is not None})


def update_ratios(record: RunRecord) -> dict[str, Series]:
    """Return by layer, and as ``total``, the norm of an update in units of the norm of the parameters."""
    return known(layer_series(record, "update_ratio"))


def trunk_constants(record: RunRecord) -> dict[str, Series]:
    """Return the trunk's certificates by norm and what was ``measured``; nothing where all of it is infinite."""
    measured = layer_series(record, "local_lipschitz").get("trunk")
    found = {} if measured is None else {"measured": measured}
    found |= {name.rpartition("/")[2]: series for name, series in record.series.items() if name.startswith(TRUNK)}
    found = {name: series for name, series in found.items() if not np.isnan(series.values).all()}
    return found if known(found) else {}


def reduced(layers: dict[str, Series], reduce: Callable[..., Any]) -> Series | None:
    """Return one value for each step at which all layers have one.

    Args:
        layers: to be made one.
        reduce: of (layers, rows), along an axis, nan left out.
    """
    if not layers:
        return None
    first, *others = layers.values()
    steps = first.steps
    for series in others:
        steps = np.intersect1d(steps, series.steps)
    values = np.stack([finite(series.values)[np.searchsorted(series.steps, steps)] for series in layers.values()])
    some = np.isfinite(values).any(0)
    place = np.searchsorted(first.steps, steps[some])
    return Series(first.steps[place], first.tokens[place], reduce(values[:, some], 0)) if some.any() else None


def _of_blocks(layers: dict[str, Series], kind: str | None = None) -> dict[str, Series]:
    """Return the series of blocks by the block's number; of the residuals named `kind` alone where it is given."""
    found = {}
    for layer, series in known(layers).items():
        match layer.split("."):
            case ["blocks", number, *rest] if kind is None or rest == [kind]:
                found[number] = series
    return found
