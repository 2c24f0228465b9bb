"""Reading quantities from the record of a run: of one layer, by layers or blocks, or over all layers."""

import math
import re
from collections.abc import Iterable, Mapping
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
    if quantity.of_last_layer:
        found = _completed(found)
    return found


def by_layer(metrics: Mapping[str, T], quantity: Quantity) -> dict[str, T]:
    """Return the values of a quantity by layer, in the order of the model.

    Args:
        metrics: values or series, by the whole names of the metrics.
        quantity: one that is logged by layers and stands for one name.
    """
    found = {}
    for metric, value in metrics.items():
        match split_metric(metric):
            case (group, str(layer), name) if quantity.matches(group, name):
                found[layer] = value
    return dict(sorted(found.items(), key=lambda item: layer_place(item[0])))


def metrics_of(names: Iterable[str], quantity: Quantity, layer: str | None) -> list[str]:
    """Return which of the names are those of a quantity, or else the one of the metric to read instead.

    Args:
        names: the names of metrics.
        quantity: one of the catalogue.
        layer: a layer or a whole such as the trunk; None for a quantity of the run.

    Returns:
        At most one name, but of a quantity that stands for several names all of them.
    """
    every = list(names)
    found = [name for name in every if _is_of(name, quantity, layer)]
    return found or [name for name in every if name == quantity.instead.get(layer or "")]


def series_of(record: RunRecord, quantity: Quantity, layer: str | None) -> dict[str, Series]:
    """Return the series of a quantity in one layer, or of the run, by the last parts of their names."""
    if quantity.difference is not None:
        series = layer_series(record, quantity).get(layer or "")
        return {} if series is None else {quantity.name: series}
    return {name.rpartition("/")[2]: record.series[name] for name in metrics_of(record.series, quantity, layer)}


def read_curve(record: RunRecord, quantity: Quantity, curve: Curve) -> Series | None:
    """Return the series that a curve of a quantity's chart shows; None where the run has none."""
    quantity = find_quantity(curve.quantity) if curve.quantity else quantity
    if curve.layer in REDUCTIONS:
        layers = layer_series(record, quantity)
        return over_layers([series for layer, series in layers.items() if layer not in WHOLES], str(curve.layer))
    return next(iter(series_of(record, quantity, curve.layer).values()), None)


def over_layers(layers: list[Series], reduction: str) -> Series | None:
    """Return one value for each step, over the layers that have one at this step; None without any.

    Args:
        layers: the series of the layers.
        reduction: one of `lipformer.runs.quantity.REDUCTIONS`; each of them is nan where a layer is nan.
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
    """Return the series of each block by its number: the block's own, or else that of its last layer.

    Args:
        layers: the series by the names of the layers, in the order of the model.
        kind: the name, within the block, of the only layer to take; None for any.
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
    """Return the layers without the total and those of hidden kinds; a block is shown where none of its layers is."""
    parts = {".".join(layer.split(".")[:2]) for layer in layers if layer.count(".") > 1}

    def shown(layer: str) -> bool:
        kind = kind_of(layer)
        return kind != TOTAL and (kind not in hidden or (kind == BLOCK and layer not in parts))

    return {layer: series for layer, series in layers.items() if shown(layer)}


def read_value(record: RunRecord, quantity: Quantity, value: Value) -> float | None:
    """Return the number that stands for a whole run in a table; None where the run does not have the quantity.

    It is nan where the run has no other value.
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


def best_score(record: RunRecord) -> float | None:
    """Return the best value of the task's objective on valid, from whichever file of the run folder has it."""
    metric = record.task.metric("val")
    best = record.metrics.get(f"best/{metric}")
    if best is None and record.outcome is not None:
        best = record.outcome.best
    if best is None and metric in record.series:
        values = record.series[metric].values
        best = float(np.nanmin(values)) if not np.isnan(values).all() else None
    return best if isinstance(best, int | float) and not isinstance(best, bool) else None


def latest_values(latest: Mapping[str, Any], quantity: Quantity, value: Value) -> list[tuple[str, float, str]]:
    """Return the last value of a quantity for the summary or the line of progress.

    Args:
        latest: the last values of metrics by their whole names; those that are not numbers are left out.
        quantity: one of the catalogue.
        value: says which layer is meant.

    Returns:
        Triples of title, number and layer, which is empty where it is not to be named. At most one; but of a quantity
        that stands for several names one for each, with the name in its title.
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
    numbers = {name: to_number(latest[name]) for name in metrics_of(latest, quantity, value.layer)}
    return [
        (f"{value.title}, {name.rpartition('/')[2]}" if quantity.is_pattern else value.title, number, "")
        for name, number in numbers.items()
        if number is not None
    ]


def to_number(value: Any) -> float | None:
    """Return a value as a number, which may be infinite or nan; None if it is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def drawable(values: np.ndarray) -> np.ndarray:
    """Return the values, with infinity in the place of those that are too large to be drawn."""
    return np.where(np.abs(values) > LARGEST_DRAWN, np.copysign(np.inf, values), values)


def _is_of(metric: str, quantity: Quantity, layer: str | None) -> bool:
    parts = split_metric(metric)
    return parts is not None and parts[1] == layer and quantity.matches(parts[0], parts[2])


def _completed(layers: dict[str, Series]) -> dict[str, Series]:
    """Return the outputs of layers, with those of the blocks and the trunk up to the last step.

    A block and a trunk return what their last layer returns, which is logged once. Of runs before that was so, each has
    a series of its own; where such a run was continued, it ends there, and that of the last layer goes on.
    """
    inner = {name: series for name, series in layers.items() if name.count(".") > 1}
    for number, last in by_block(inner).items():
        if (block := f"blocks.{number}") in layers:
            layers = {**layers, block: _continued(layers[block], last)}
    for last in list(by_block(layers).values())[-1:]:
        layers = {**layers, TRUNK: _continued(layers[TRUNK], last) if TRUNK in layers else last}
    return dict(sorted(layers.items(), key=lambda item: layer_place(item[0])))


def _continued(one: Series, other: Series) -> Series:
    """Return a series, and after its last step the other one."""
    after = other.steps > one.steps[-1]
    return Series(
        *(np.concatenate([getattr(one, of), getattr(other, of)[after]]) for of in ("steps", "tokens", "values"))
    )


def _difference(one: Series, other: Series) -> Series:
    """Return the difference of two series in the steps that both have."""
    _, i, j = np.intersect1d(one.steps, other.steps, return_indices=True)
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf, or nearly so
        return Series(one.steps[i], one.tokens[i], drawable(one.values[i]) - drawable(other.values[j]))
