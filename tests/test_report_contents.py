"""What the report shows of runs: curves, heat maps, tables and numbers; and how long series are thinned out."""

import dataclasses
import math

import numpy as np
import pytest
from run_folders import residuals, two_runs, write_run

from lipformer.report.charts import draw_charts, plain
from lipformer.report.heat_maps import draw_heat_maps
from lipformer.report.tables import Cell, certificate_table, facts, fixed, runs_table, short, whole
from lipformer.report.thinning import bucket_columns, thin
from lipformer.runs.record import read_record


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return two_runs(tmp_path_factory.mktemp("pair") / "runs")


def test_curves_hold_the_values_at_their_steps(folders):
    records = [read_record(folder) for folder in folders]
    charts = {chart["key"]: chart for chart in draw_charts(records, ["a", "b"])}
    for record, curve in zip(records, charts["train"]["curves"], strict=True):
        series = record.series["train/nats_per_char"]
        np.testing.assert_array_equal(np.cumsum(curve["steps"]), series.steps)
        np.testing.assert_array_equal(np.cumsum(curve["tokens"]), series.tokens)
        np.testing.assert_allclose(np.array(curve["values"], float), series.values, rtol=1e-4)
    assert charts["train"]["curves"][1]["values"][-1] == "nan"
    gains = np.stack([records[0].series[f"stability/{layer}/branch_gain"].values for layer in residuals(4)])
    pale, curve = (next(c for c in charts["branch_gain"]["curves"] if c["pale"] == p) for p in (True, False))
    np.testing.assert_allclose(curve["values"], gains.min(0), rtol=1e-4)
    np.testing.assert_allclose(pale["values"], gains.max(0), rtol=1e-4)
    scales = {key: chart["log"] for key, chart in charts.items()}
    assert scales["gradient_norm"]
    assert scales["local_lipschitz"]
    assert not scales["val"]
    assert not scales["lr"]


def test_heat_maps_share_a_scale_and_mark_what_is_not_finite(folders):
    records = [read_record(folder) for folder in folders]
    maps = {heat_map["key"]: heat_map for heat_map in draw_heat_maps(records)}
    assert maps["entropy_share"]["scale"] == [0, 1]
    ranges = maps["output_range"]
    assert ranges["runs"][0]["layers"] == [*residuals(4), "trunk"]
    finite = [v for run in ranges["runs"] for row in run["values"] for v in row if isinstance(v, float)]
    assert ranges["scale"] == pytest.approx([min(finite), max(finite)], rel=1e-3)
    series = [records[0].series[f"stability/blocks.1.attention/output_{end}"].values for end in ("max", "min")]
    np.testing.assert_allclose(ranges["runs"][0]["values"][2], series[0] - series[1], rtol=1e-3)
    assert [row[-1] for row in ranges["runs"][1]["values"]] == ["nan"] * 9
    assert ranges["marked"] == {"nan": True, "inf": False}
    local = maps["local_lipschitz"]
    assert local["log"]
    assert "blocks.0.attention.norm" not in local["runs"][0]["layers"]
    assert local["runs"][0]["steps"] == [499, 999, 1499, 1999, 2499, 2999]


def test_thinning_keeps_the_extremes_the_ends_and_what_is_not_finite():
    values = np.random.default_rng(0).normal(size=10_000)
    values[[1234, 7000]] = 50, -50
    values[5000], values[9000:9100] = np.nan, np.inf
    kept = thin(values, 1000)
    assert 500 < len(kept) <= 1000
    assert (np.diff(kept) > 0).all()
    assert {0, 1234, 7000, 5000, 9999} <= set(kept)
    assert np.isinf(values[kept]).any()
    np.testing.assert_array_equal(thin(values[:1000], 1000), np.arange(1000))


def test_merged_columns_keep_the_extremes_and_what_is_not_finite():
    values = np.array([[1.0, 5, 2, 0, 3, 4], [1, np.inf, 2, np.nan, 3, np.nan], [np.nan] * 6])
    stands = np.array([[True] * 6, [True] * 5 + [False], [False] * 6])
    merged, standing, columns = bucket_columns(values, stands, 3, keep="max")
    np.testing.assert_array_equal(merged, [[5, 2, 4], [np.inf, np.nan, 3], [np.nan] * 3])
    np.testing.assert_array_equal(standing, [[True] * 3, [True] * 3, [False] * 3])
    np.testing.assert_array_equal(columns, [1, 3, 5])
    assert bucket_columns(values, stands, 3, keep="min")[0][0].tolist() == [1, 0, 3]


@pytest.mark.parametrize(
    ("value", "text", "key"),
    [
        (1.23456, "1.235", "1.23456"),
        (0, "0", "0.0"),
        (3e-5, "3.00e-5", "3e-05"),
        (2.5e17, "2.50e17", "2.5e+17"),
        (-0.5, "-0.5", "-0.5"),
        (math.inf, "inf", "Infinity"),
        (-math.inf, "-inf", "-Infinity"),
        (math.nan, "nan", "NaN"),
        (None, "–", ""),
        ("text", "–", ""),
        (True, "–", ""),
    ],
)
def test_numbers_are_shown_short_and_sorted_exactly(value, text, key):
    assert (short(value).text, short(value).key) == (text, key)


def test_whole_and_fixed_numbers():
    assert [whole(v).text for v in (1234567, 9069.4, math.inf, None)] == ["1,234,567", "9,069", "inf", "–"]
    assert [fixed(v).text for v in (1.41391, 1e9, math.nan, None)] == ["1.4139", "1.00e9", "nan", "–"]


def test_table_of_runs(folders):
    columns = {column.title: column for column in runs_table([read_record(folder) for folder in folders], ["a", "b"])}
    assert list(columns) == [
        "run", "status", "nats", "bits", "entropy", "certificate", "gradient", "steps", "tokens/s", "lr", "attention",
    ]  # fmt: skip
    assert [cell.text for cell in columns["attention"].cells] == ["TiedL2Attention", "DotProductAttention"]
    assert columns["lr"].numeric
    assert columns["certificate"].numeric
    assert not columns["attention"].numeric
    assert columns["certificate"].cells[1] == Cell("inf", math.inf)
    nats = columns["nats"].cells[0].number
    assert columns["bits"].cells[0].number == pytest.approx(nats / math.log(2))
    assert 0 < columns["entropy"].cells[1].number < 0.1  # the last before it became nan
    assert 30 < columns["gradient"].cells[1].number < 50


def test_certificate_comes_from_its_file_or_else_from_the_metrics(folders):
    record = read_record(folders[0])
    table = certificate_table(record, 0)
    assert table.of == "in the mixed norm, up to 288 tokens"
    assert table.rows[1] == ("branch", "TiedL2Attention", Cell("3.25", 3.25), "", True)
    logged = certificate_table(dataclasses.replace(record, certificate=None), 0)
    assert logged.of == "in the mixed norm, as logged at step 2,999"
    assert [row[0] for row in logged.rows] == residuals(4)
    assert [(name, cell.number) for name, cell in logged.totals] == [("trunk", pytest.approx(6e5, rel=1e-3))]
    assert certificate_table(dataclasses.replace(record, certificate=None, series={}), 0) is None


def test_facts_leave_out_what_is_not_known(tmp_path):
    assert facts(read_record(tmp_path)) == []
    record = read_record(write_run(tmp_path / "run", status=None, steps=900))
    told = dict(facts(record))
    assert told["steps"] == "900"
    assert told["tokens"] == "855,000"
    assert "parameters" not in told


def test_the_largest_number_is_shown_as_infinite():
    assert plain(1.7976931348623157e308) == "inf"
    assert plain(1.23456789) == 1.2346
    assert whole(1e300).text == "1.00e300"
