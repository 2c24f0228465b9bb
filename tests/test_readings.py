"""What report, figures and tables read of a record: series by layer and block, over all layers, and single numbers."""

import math
from pathlib import Path

import numpy as np
import pytest

from lipformer.figures.quantities import block_families
from lipformer.report.heat_maps import draw_heat_maps
from lipformer.runs.metric_names import STABILITY, TOTAL, kind_of, split_metric
from lipformer.runs.quantities import CATALOGUE, find_quantity
from lipformer.runs.quantity import LARGEST, Curve, Value
from lipformer.runs.readings import (
    by_block,
    latest_values,
    layer_series,
    over_layers,
    read_curve,
    read_value,
    shown_layers,
)
from lipformer.runs.record import RunRecord, Series, read_record


def series(*values, first=0):
    steps = np.arange(first, first + len(values), dtype=float)
    return Series(steps, 10 * steps, np.array(values, float))


def record(metrics):
    return RunRecord(Path("/run"), {}, None, {}, metrics, None, None)


def test_a_difference_is_of_the_rows_that_both_have():
    most = {"stability/trunk/output_max": series(3, 4, math.inf), "stability/logits/output_max": series(1)}
    run = record({**most, "stability/trunk/output_min": series(1, math.inf, first=1)})
    (found,) = layer_series(run, find_quantity("output_range")).values()
    np.testing.assert_array_equal(found.steps, [1, 2])
    np.testing.assert_array_equal(found.tokens, [10, 20])
    np.testing.assert_array_equal(found.values, [3, math.nan])


def test_a_curve_of_a_difference():
    run = record({"stability/trunk/output_max": series(3, 4), "stability/trunk/output_min": series(1, 1)})
    ranges = find_quantity("output_range")
    assert read_curve(run, ranges, Curve("range", "trunk")).values.tolist() == [2, 3]
    assert read_curve(run, ranges, Curve("range", "logits")) is None


def test_all_layers_as_one():
    layers = [series(1, 5, 2), series(4, math.nan, first=1)]
    for reduction, values in {
        "smallest": [1, 4, math.nan],
        "largest": [1, 5, math.nan],
        "mean": [1, 4.5, math.nan],
    }.items():
        found = over_layers(layers, reduction)
        np.testing.assert_array_equal(found.values, values)
        np.testing.assert_array_equal(found.tokens, [0, 10, 20])
    assert over_layers([], "mean") is None
    assert over_layers([series()], "mean") is None


def test_a_block_is_its_own_or_its_last_layer():
    old = {"blocks.0": series(1), "blocks.0.attention": series(2), "blocks.0.feedforward": series(1)}
    new = {"blocks.2.attention": series(3), "blocks.10.feedforward": series(4), "trunk": series(9)}
    found = by_block({**old, **new})
    assert {number: one.values[0] for number, one in found.items()} == {"0": 1, "2": 3, "10": 4}
    assert list(found) == ["0", "2", "10"]
    assert list(by_block({**old, **new}, "feedforward")) == ["0", "10"]
    assert list(shown_layers({**old, **new}, ("block",))) == [*list(old)[1:], *new]
    assert list(
        shown_layers({"blocks.1": series(1), "blocks.1.attention.norm": series(1), "total": series(1)}, ("norm",))
    ) == ["blocks.1"]


@pytest.mark.parametrize("blocks", [True, False], ids=["version 0.1.0", "now"])
def test_the_range_of_a_blocks_output_is_its_own_or_that_of_its_last_residual(blocks):
    metrics, residuals = {}, ("attention", "feedforward")
    for number in range(2):
        for layer, most in zip(residuals, (1.0, 2.0 + number), strict=True):
            metrics[f"stability/blocks.{number}.{layer}/output_max"] = series(most, most)
            metrics[f"stability/blocks.{number}.{layer}/output_min"] = series(-most, -most)
        if blocks:
            for end in ("max", "min"):
                metrics[f"stability/blocks.{number}/output_{end}"] = metrics[
                    f"stability/blocks.{number}.feedforward/output_{end}"
                ]
    run, quantity = record(metrics), find_quantity("output_range")
    (ranges,) = block_families(run, quantity, quantity.drawing).values()
    assert {number: one.values.tolist() for number, one in ranges.items()} == {"0": [4.0, 4.0], "1": [6.0, 6.0]}
    (heat_map,) = draw_heat_maps([run])
    names = [f"blocks.{number}.{layer}" for number in range(2) for layer in residuals]
    assert heat_map["runs"][0]["layers"] == [*names, "trunk"]
    assert heat_map["runs"][0]["values"][-1] == [6.0, 6.0], "what the last block returns"
    own = {f"stability/trunk/output_{end}": series(value, value) for end, value in (("max", 9.0), ("min", 0.0))}
    assert layer_series(record({**metrics, **own}), quantity)["trunk"].values.tolist() == [9.0, 9.0]


def test_a_range_goes_on_where_a_run_of_an_earlier_version_was_continued():
    """Blocks and trunk had the output of their last layer under their own names, too, up to that step."""
    ends = (("max", 1), ("min", -1))
    metrics = {
        f"stability/blocks.0.feedforward/output_{end}": series(*(sign * v for v in (1, 2, 3))) for end, sign in ends
    }
    for layer in ("blocks.0", "trunk"):
        metrics |= {f"stability/{layer}/output_{end}": series(sign, 2 * sign) for end, sign in ends}
    found = layer_series(record(metrics), find_quantity("output_range"))
    assert list(found) == ["blocks.0", "blocks.0.feedforward", "trunk"]
    for one in found.values():
        assert one.values.tolist() == [2.0, 4.0, 6.0]
        assert one.steps.tolist() == [0, 1, 2]


def test_a_metric_that_is_missing_has_another():
    gradient = find_quantity("gradient_norm")
    old = {"train/gradient_norm": series(1, 3)}
    new = {**old, "stability/total/gradient_norm": series(2)}
    for metrics, value in ((old, 3.0), (new, 2.0), ({}, None)):
        run = record(metrics)
        assert read_value(run, gradient, gradient.column) == value
        latest = {name: one.values[-1] for name, one in metrics.items()}
        assert latest_values(latest, gradient, gradient.progress) == (
            [] if value is None else [("gradient", value, "")]
        )


def test_a_value_is_the_last_number():
    share = find_quantity("entropy_share")
    for values, value in (((0.5, 0.25, math.nan), 0.25), ((math.nan,), math.nan), ((0.5, math.inf), math.inf)):
        run = record({"stability/total/entropy_share": series(*values)})
        np.testing.assert_equal(read_value(run, share, share.column), value)


def test_wholes_are_no_layers():
    latest = {
        "stability/total/gradient_norm": 9.0,
        "stability/trunk/gradient_norm": 8.0,
        "stability/head/gradient_norm": 1,
    }
    gradient = find_quantity("gradient_norm")
    assert latest_values(latest, gradient, Value("largest", LARGEST)) == [("largest", 1.0, "head")]
    assert latest_values({"stability/head/gradient_norm": math.nan}, gradient, Value("largest", LARGEST)) == []
    assert gradient.metrics(TOTAL) == ("stability/total/gradient_norm", "train/gradient_norm")
    assert gradient.group == STABILITY
    certificate = {"certificate/trunk/2": 3.0, "certificate/trunk/mixed": math.inf, "certificate/logits/2": 1.0}
    (row,) = (row for row in CATALOGUE if row.group == "certificate")
    assert latest_values(certificate, row, row.summary[0]) == [
        ("trunk certificate, 2", 3.0, ""),
        ("trunk certificate, mixed", math.inf, ""),
    ]


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        ("total", "total"),
        ("trunk", "trunk"),
        ("blocks.3", "block"),
        ("blocks.3.attention", "layer"),
        ("blocks.3.attention.branch", "branch"),
        ("blocks.3.attention.norm", "norm"),
        ("norm", "layer"),
        ("gru", "layer"),
        ("a.trunk", "layer"),
    ],
)
def test_kinds_of_layers(layer, kind):
    assert kind_of(layer) == kind


@pytest.mark.parametrize("name", ["epoch", "a/b/c/d", ""])
def test_what_is_no_metric(name):
    assert split_metric(name) is None


def test_a_run_of_version_0_1_0_is_read_by_the_names_of_today():
    """The map from features to logits was called head, and blocks and trunk had columns for their outputs."""
    run = read_record(Path(__file__).parent / "old_runs" / "tied_l2")
    layers = list(layer_series(run, find_quantity("gradient_norm")))
    assert layers[-2:] == ["unembedding", "total"]
    ranges = layer_series(run, find_quantity("output_range"))
    for number, own in by_block(ranges).items():
        np.testing.assert_array_equal(own.values, ranges[f"blocks.{number}"].values)
        np.testing.assert_array_equal(own.values, ranges[f"blocks.{number}.feedforward"].values)
    assert "trunk" in ranges
    assert [heat_map["key"] for heat_map in draw_heat_maps([run])][:2] == ["entropy_share", "output_range"]
