"""The series that the figures draw; a series without a finite value is left out."""

import numpy as np

from lipformer.runs import quantities
from lipformer.runs.metric_names import WHOLES
from lipformer.runs.quantity import Drawing, Quantity
from lipformer.runs.readings import (
    LARGEST_DRAWN,
    by_block,
    kinds_in_blocks,
    layer_series,
    over_layers,
    read_curve,
    series_of,
)
from lipformer.runs.record import RunRecord, Series


def finite(values: np.ndarray) -> np.ndarray:
    """Replace infinite values, and those too large to be drawn, by nan, which is not drawn."""
    return np.where(np.abs(values) < LARGEST_DRAWN, values, np.nan)


def infinite(values: np.ndarray) -> np.ndarray:
    """Return which values are infinite or too large to be drawn."""
    return values >= LARGEST_DRAWN


def has_numbers(series: Series) -> bool:
    """Return whether a series has a value that can be drawn."""
    return bool(np.isfinite(finite(series.values)).any())


def known(layers: dict[str, Series]) -> dict[str, Series]:
    """Return the series that have a value that can be drawn."""
    return {layer: series for layer, series in layers.items() if has_numbers(series)}


def learning_curves(record: RunRecord) -> dict[str, Series]:
    """Return the series of the task's objective on ``train`` and ``valid``, as far as the run has them."""
    found = {}
    for name, metric in (("train", record.task.metric("train")), ("valid", record.task.metric("val"))):
        if metric in record.series and has_numbers(record.series[metric]):
            found[name] = record.series[metric]
    return found


def drawings() -> list[tuple[Quantity, Drawing]]:
    """Return the quantities that are drawn, in the order of the figures."""
    return [(quantity, quantity.drawing) for quantity in quantities.CATALOGUE if quantity.drawing is not None]


def block_families(record: RunRecord, quantity: Quantity, drawing: Drawing) -> dict[str, dict[str, Series]]:
    """Return the series of each block: one family of them, or of ``branches`` one family for each kind of branch.

    Returns:
        By the name of the family, which is empty where there is one, the series by the number of the block.
    """
    layers = {layer: one for layer, one in layer_series(record, quantity).items() if layer not in WHOLES}
    layers = known(layers)
    if drawing.kind != "branches":
        return {"": by_block(layers)} if by_block(layers) else {}
    return {kind: by_block(layers, kind) for kind in kinds_in_blocks(layers)}


def curves(record: RunRecord, quantity: Quantity) -> dict[str, Series]:
    """Return the curves of a quantity's chart by their labels."""
    assert quantity.chart is not None
    both = [curve for curve in (quantity.chart.curve, quantity.chart.pale) if curve is not None]
    found = {curve.label: read_curve(record, quantity, curve) for curve in both}
    return known({label: series for label, series in found.items() if series is not None})


def bounds(record: RunRecord, quantity: Quantity) -> dict[str, Series]:
    """Return the measured series by the label of its curve, and the series of the bounds by their norms.

    Empty where no series has a value that can be drawn.
    """
    assert quantity.chart is not None
    assert quantity.chart.pale is not None
    measured, bound = quantity.chart.curve, quantity.chart.pale
    series = read_curve(record, quantity, measured)
    found = {} if series is None else {measured.label: series}
    found |= series_of(record, quantities.find_quantity(bound.quantity), bound.layer)
    found = {name: series for name, series in found.items() if not np.isnan(series.values).all()}
    return found if known(found) else {}


def compared(record: RunRecord, quantity: Quantity, drawing: Drawing) -> Series | None:
    """Return the line of a run in a figure of several runs; None where it has no value that can be drawn."""
    if drawing.kind in ("map", "blocks", "branches"):
        families = block_families(record, quantity, drawing).values()
        return over_layers([_only_finite(one) for family in families for one in family.values()], drawing.reduction)
    assert quantity.chart is not None
    return curves(record, quantity).get(quantity.chart.curve.label)


def _only_finite(series: Series) -> Series:
    """Leave out the rows whose value cannot be drawn."""
    rows = np.isfinite(finite(series.values))
    return Series(series.steps[rows], series.tokens[rows], series.values[rows])
