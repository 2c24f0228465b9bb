"""What is read from a record: the series of a quantity, of one layer, by layers or blocks, or over all layers."""

import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from lipformer.runs.metric_names import BLOCK, TOTAL, TRUNK, WHOLES, kind_of, layer_place, split_metric
from lipformer.runs.quantities import find_quantity
from lipformer.runs.quantity import LARGEST, MEAN, REDUCTIONS, SMALLEST, Curve, Quantity, Value
from lipformer.runs.record import RunRecord, Series

T = TypeVar("T")

LARGEST_DRAWN = 1e250
"""The largest value that is drawn as a number: axes and scales of colours, which compute with it, need some room."""


def layer_series(record: RunRecord, quantity: Quantity) -> dict[str, Series]:
    """Return a quantity's series for each layer, and each whole such as the trunk, in the order of the model."""
    if quantity.difference is not None:
        minuend, subtrahend = (layer_series(record, find_quantity(name)) for name in quantity.difference)
        both = [layer for layer in minuend if layer in subtrahend]
        found = {layer: _difference(minuend[layer], subtrahend[layer]) for layer in both}
        found = {layer: series for layer, series in found.items() if len(series.steps)}
    else:
        found = by_layer(record.series, quantity)
    last = list(by_block(found).values())[-1:]
    if quantity.of_last_layer and TRUNK not in found and last:
        found = dict(sorted({**found, TRUNK: last[0]}.items(), key=lambda item: layer_place(item[0])))
    return found


def by_layer(metrics: Mapping[str, T], quantity: Quantity) -> dict[str, T]:
    """Return what there is of a quantity by layer, in the order of the model.

    Args:
        metrics: by the metrics' whole names.
        quantity: is logged by layers, under one name.
    """
    found = {}
    for metric, value in metrics.items():
        match split_metric(metric):
            case (group, str(layer), name) if quantity.matches(group, name):
                found[layer] = value
    return dict(sorted(found.items(), key=lambda item: layer_place(item[0])))


def series_of(record: RunRecord, quantity: Quantity, layer: str | None) -> dict[str, Series]:
    """Return by the metrics' last parts what a run has of a quantity in one layer, or of the whole run.

    That is one series, or none; of a quantity that stands for several names one of each.
    """
    for metric in quantity.metrics(layer):
        found = [name for name in record.series if re.fullmatch(metric, name)]
        if found:
            return {name.rpartition("/")[2]: record.series[name] for name in found}
    return {}


def read_curve(record: RunRecord, quantity: Quantity, curve: Curve) -> Series | None:
    """Return the series that a curve of a quantity's chart shows; None where the run has none."""
    quantity = find_quantity(curve.quantity) if curve.quantity else quantity
    if curve.layer in REDUCTIONS:
        layers = layer_series(record, quantity)
        return over_layers([series for layer, series in layers.items() if layer not in WHOLES], str(curve.layer))
    return next(iter(series_of(record, quantity, curve.layer).values()), None)


def over_layers(layers: list[Series], reduction: str) -> Series | None:
    """Return one value a step over the layers that have one there; None where there are no layers.

    Args:
        layers: their series.
        reduction: one of `lipformer.runs.quantity.REDUCTIONS`; a nan makes each of them nan.
    """
    if not layers:
        return None
    steps, tokens, values = (
        np.concatenate([getattr(layer, name) for layer in layers]) for name in ("steps", "tokens", "values")
    )
    order = np.argsort(steps, kind="stable")
    unique, first, counts = np.unique(steps[order], return_index=True, return_counts=True)
    if not len(unique):
        return None
    ufunc = np.minimum if reduction == SMALLEST else np.maximum if reduction == LARGEST else np.add
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf, or nearly so
        reduced = ufunc.reduceat(values[order], first)
    return Series(unique, tokens[order][first], reduced / counts if reduction == MEAN else reduced)


def by_block(layers: Mapping[str, Series], kind: str | None = None) -> dict[str, Series]:
    """Return the series of blocks by the block's number: a block's own, or else that of its last layer.

    Args:
        layers: by the layers' names, in the order of the model.
        kind: the name within the block of the only layers to be taken; None for any.
    """
    own, found = {}, {}
    for layer, series in layers.items():
        match layer.split("."):
            case ["blocks", number] if kind is None:
                own[number] = series
            case ["blocks", number, *rest] if kind is None or ".".join(rest) == kind:
                found[number] = series
    numbers = sorted(own.keys() | found.keys(), key=lambda number: layer_place(f"blocks.{number}"))
    return {number: own.get(number, found.get(number)) for number in numbers}


def kinds_in_blocks(layers: Mapping[str, Series]) -> list[str]:
    """Return the names that layers have within the blocks, such as attention and feedforward."""
    return list(dict.fromkeys(layer.split(".", 2)[2] for layer in layers if re.match(r"blocks\.[^.]+\.", layer)))


def shown_layers(layers: Mapping[str, Series], hidden: tuple[str, ...]) -> dict[str, Series]:
    """Leave out the total, and layers of the kinds that are hidden; a block only where layers of it are there."""
    parts = {".".join(layer.split(".")[:2]) for layer in layers if layer.count(".") > 1}

    def shown(layer: str) -> bool:
        kind = kind_of(layer)
        return kind != TOTAL and (kind not in hidden or (kind == BLOCK and layer not in parts))

    return {layer: series for layer, series in layers.items() if shown(layer)}


def read_value(record: RunRecord, quantity: Quantity, value: Value) -> float | None:
    """Return the one number that a value picks of the course of a run; None where the run has nothing of it.

    nan where there are numbers and none of them is one.
    """
    series = read_curve(record, quantity, Curve(value.title, value.layer))
    if series is None:
        return None
    if value.pick == SMALLEST:
        return float(np.fmin.reduce(series.values))
    if value.pick == LARGEST:
        return float(np.fmax.reduce(series.values))
    numbers = series.values[~np.isnan(series.values)]
    return float(numbers[-1]) if len(numbers) else math.nan


def latest_values(latest: Mapping[str, Any], quantity: Quantity, value: Value) -> list[tuple[str, float, str]]:
    """Return what the last values of the metrics have of a quantity: (title, number, layer where it is named).

    That is one number, or none; of a quantity that stands for several names one of each, with the name in the title.

    Args:
        latest: by the metrics' whole names; what is no number in it is passed over.
        quantity: one of the catalogue.
        value: which number of the quantity.
    """
    if value.layer in (SMALLEST, LARGEST):
        numbers = {
            layer: to_number(found) for layer, found in by_layer(latest, quantity).items() if layer not in WHOLES
        }
        known = {layer: number for layer, number in numbers.items() if number is not None and not math.isnan(number)}
        if not known:
            return []
        layer = (min if value.layer == SMALLEST else max)(known, key=known.__getitem__)
        return [(value.title, known[layer], layer)]
    for metric in quantity.metrics(value.layer):
        names = [name for name in latest if re.fullmatch(metric, name) and to_number(latest[name]) is not None]
        if names:
            titles = [
                f"{value.title}, {name.rpartition('/')[2]}" if quantity.is_pattern else value.title for name in names
            ]
            return [(title, float(latest[name]), "") for title, name in zip(titles, names, strict=True)]
    return []


def to_number(value: Any) -> float | None:
    """Return a value as a number, which may be infinite or nan; None where it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def drawable(values: np.ndarray) -> np.ndarray:
    """Replace by infinity what is too large to be drawn."""
    return np.where(np.abs(values) > LARGEST_DRAWN, np.copysign(np.inf, values), values)


def _difference(one: Series, other: Series) -> Series:
    """Return one less the other in the rows that both have."""
    _, i, j = np.intersect1d(one.steps, other.steps, return_indices=True)
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf, or nearly so
        return Series(one.steps[i], one.tokens[i], drawable(one.values[i]) - drawable(other.values[j]))
