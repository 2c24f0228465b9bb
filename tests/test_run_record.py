"""Run folders are read whatever state they are in."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from lipformer.errors import UsageError
from lipformer.runs.outcome import Outcome
from lipformer.runs.quantity import Quantity
from lipformer.runs.readings import layer_series
from lipformer.runs.record import find_runs, name_runs, read_record


def make(folder: Path, csv: str = "epoch,step,train/tokens\n0,1,20.0\n", config: str = "name: run\n") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config)
    (folder / "metrics.csv").write_text(csv)
    return folder


def test_reads_columns_by_the_rows_in_which_they_stand(tmp_path):
    csv = (
        "epoch,step,train/nats_per_char,train/tokens,val/nats_per_char\n"
        "0,9,3.0,100.0,\n0,14,,,2.5\n0,19,nan,300.0,\n0,19,,,inf\n"
    )
    series = read_record(make(tmp_path / "run", csv)).series
    train, val = series["train/nats_per_char"], series["val/nats_per_char"]
    np.testing.assert_array_equal(train.steps, [9, 19])
    np.testing.assert_array_equal(train.values, [3.0, math.nan])
    np.testing.assert_array_equal(val.steps, [14, 19])
    np.testing.assert_array_equal(val.tokens, [200, 300])  # between the rows of training, and with one
    np.testing.assert_array_equal(val.values, [2.5, math.inf])
    assert train.values.dtype == np.float64
    assert set(series) == {"train/nats_per_char", "train/tokens", "val/nats_per_char"}


def test_tokens_before_the_first_row_of_training_grow_from_zero(tmp_path):
    csv = "epoch,step,train/tokens,val/nats_per_char\n0,4,,2.5\n0,9,100.0,\n"
    np.testing.assert_allclose(read_record(make(tmp_path / "run", csv)).series["val/nats_per_char"].tokens, [50.0])


def test_without_tokens_they_are_nan(tmp_path):
    csv = "epoch,step,train/nats_per_char\n0,9,3.0\n"
    assert np.isnan(read_record(make(tmp_path / "run", csv)).series["train/nats_per_char"].tokens).all()


@pytest.mark.parametrize("tail", ["0,29,1.2", "0,29", "0,29,1.25,3", "\0\0\0\0\n", "0,x,1.0\n", "\n"])
def test_a_broken_last_row_is_left_out(tmp_path, tail):
    csv = f"epoch,step,train/nats_per_char,train/tokens\n0,9,3.0,100.0\n{tail}"
    np.testing.assert_array_equal(read_record(make(tmp_path / "run", csv)).series["train/nats_per_char"].values, [3.0])


def test_rows_of_a_resumed_run_come_in_order(tmp_path):
    csv = "epoch,step,train/nats_per_char,train/tokens\n0,19,2.0,200.0\n0,9,3.0,100.0\n"
    np.testing.assert_array_equal(read_record(make(tmp_path / "run", csv)).series["train/nats_per_char"].steps, [9, 19])


@pytest.mark.parametrize("csv", ["", "epoch,step\n", "epoch,train/tokens\n0,3.0\n", "epoch,step,train/tokens"])
def test_no_whole_row_no_series(tmp_path, csv):
    assert read_record(make(tmp_path / "run", csv)).series == {}


def test_an_empty_folder_is_a_run_that_says_nothing(tmp_path):
    record = read_record(tmp_path)
    assert record.status == "running"
    assert (record.outcome, record.samples, record.certificate) == (None, None, None)
    assert (record.config, record.metrics, record.series) == ({}, {}, {})


def test_no_folder_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="nowhere: no such run folder"):
        read_record(tmp_path / "nowhere")


def test_reads_the_files_beside_the_metrics(tmp_path):
    folder = make(tmp_path / "run", config="lr: 1.0e-05\ndata:\n  dir: ${oc.env:HOME}\n")
    Outcome("diverged", 3, "loss is nan", 1.5).write(folder)
    for name in ("metrics", "samples", "certificate"):
        (folder / f"{name}.json").write_text(json.dumps({"of": name}))
    record = read_record(folder)
    assert record.config == {"lr": 1e-5, "data": {"dir": "${oc.env:HOME}"}}
    assert record.status == "diverged"
    assert record.outcome == Outcome("diverged", 3, "loss is nan", 1.5)
    assert (record.metrics, record.samples, record.certificate) == tuple(
        {"of": name} for name in ("metrics", "samples", "certificate")
    )


@pytest.mark.parametrize("broken", ["", "{", "[1]", "null", "3"])
def test_broken_files_are_left_out(tmp_path, broken):
    folder = make(tmp_path / "run", config=broken)
    for name in ("metrics.json", "samples.json", "certificate.json", "status.json"):
        (folder / name).write_text(broken)
    record = read_record(folder)
    assert (record.outcome, record.samples, record.certificate) == (None, None, None)
    assert (record.config, record.metrics) == ({}, {})


def test_a_sweep_stands_for_its_jobs(tmp_path):
    sweep = tmp_path / "sweep"
    runs = [make(tmp_path / "run"), make(sweep / "0"), make(sweep / "1")]
    assert find_runs(f"{tmp_path}/*") == [runs[0]]
    (sweep / "multirun.yaml").write_text("")
    assert find_runs(f"{tmp_path}/*") == runs
    assert find_runs(str(sweep)) == runs[1:]


def test_jobs_of_sweeps_are_named_by_sweep_and_number(tmp_path):
    first = [make(tmp_path / "2026-01-01_10-00-00_000001-aaaaaa-sweep" / job, config="name: lr\n") for job in "01"]
    second = make(tmp_path / "2026-01-02_10-00-00_000001-bbbbbb-sweep" / "0", config="name: lr\n")
    assert name_runs([read_record(run) for run in (*first, second)]) == ["lr aaaaaa/0", "lr aaaaaa/1", "lr bbbbbb/0"]
    assert name_runs([read_record(first[0])]) == ["lr aaaaaa/0"]


def test_finds_only_run_folders_sorted(tmp_path):
    runs = [make(tmp_path / "b"), make(tmp_path / "a"), make(tmp_path / "deep" / "c")]
    (tmp_path / "no_run").mkdir()
    (tmp_path / "no_metrics").mkdir()
    (tmp_path / "no_metrics" / "config.yaml").write_text("")
    assert find_runs(f"{tmp_path}/*") == [runs[1], runs[0]]
    assert find_runs(f"{tmp_path}/**") == [runs[1], runs[0], runs[2]]
    with pytest.raises(UsageError, match=r"runs=.*no_\*: no run folder there"):
        find_runs(f"{tmp_path}/no_*")


def test_layers_come_in_the_order_of_the_model(tmp_path):
    layers = [
        "embedding",
        "position",
        "blocks.0",
        "blocks.0.attention",
        "blocks.0.attention.branch",
        "blocks.0.feedforward",
        "blocks.2",
        "blocks.10",
        "final_norm",
        "trunk",
        "unembedding",
        "logits",
        "total",
    ]
    names = [f"stability/{layer}/x" for layer in sorted(layers, reverse=True)]
    others = ["stability/trunk/xx", "certificate/trunk/x", "train/x", "stability/x"]
    csv = f"epoch,step,{','.join(names + others)}\n0,1{',1.0' * len(names + others)}\n"
    record = read_record(make(tmp_path / "run", csv))
    assert list(layer_series(record, Quantity("x", ""))) == layers
    assert list(layer_series(record, Quantity("x", "", group="certificate"))) == ["trunk"]
    assert layer_series(record, Quantity("nothing", "")) == {}


def test_names_are_short_and_no_two_the_same(tmp_path):
    dated = "2026-01-02_03-04-05_678901"
    folders = ["a/0", "b/0", "b/1", f"c/{dated}-1f", f"d/{dated}-2e", f"d/{dated}-2e-sweep/7"]
    records = [read_record(make(tmp_path / folder)) for folder in folders]
    assert name_runs(records) == ["a/0", "b/0", "1", "run 1f", "run 2e", "run 2e/7"]
    assert name_runs([records[0], records[0]])[1].endswith("/0 (2)")


@pytest.mark.parametrize(
    "told",
    [
        "{}",
        '{"status": []}',
        '{"status": {}}',
        '{"status": null}',
        '{"status": "failed", "exit_code": "1"}',
        '{"status": "failed", "exit_code": true}',
        '{"status": "failed", "reason": 3}',
        '{"status": "failed", "best": "low"}',
        '{"status": "failed", "best": false}',
        '{"status": "failed", "exit_code": 1' + "0" * 400 + "}",
        "[" * 100_000,
    ],
    ids=lambda told: told[:40],
)
def test_a_status_of_wrong_types_is_none(tmp_path, told):
    (tmp_path / "status.json").write_text(told)
    assert read_record(tmp_path).outcome is None


def test_json_nested_too_deep_is_left_out(tmp_path):
    for name in ("metrics.json", "samples.json", "certificate.json"):
        (tmp_path / name).write_text('{"x": ' + "[" * 100_000)
    record = read_record(tmp_path)
    assert (record.metrics, record.samples, record.certificate) == ({}, None, None)


def test_a_whole_number_too_large_is_infinite(tmp_path):
    for name in ("metrics.json", "certificate.json"):
        (tmp_path / name).write_text('{"x": -1' + "0" * 400 + ', "y": 7}')
    (tmp_path / "status.json").write_text('{"status": "finished", "best": 1' + "0" * 400 + "}")
    record = read_record(tmp_path)
    assert record.metrics == record.certificate == {"x": -math.inf, "y": 7}
    assert type(record.metrics["y"]) is int
    assert record.outcome == Outcome("finished", best=math.inf)


@pytest.mark.parametrize(
    "line", [f"0,14,{'1' * 200_000},5", '0,14,"1.0,5', "0,-inf,1.0,5", "0,inf,1.0,5", "0,1e300,1.0,5", "0,nan,1.0,5"],
    ids=["long", "quote", "-inf", "inf", "1e300", "nan"],
)  # fmt: skip
def test_a_broken_row_in_the_middle_is_left_out(tmp_path, line):
    csv = f"epoch,step,train/nats_per_char,train/tokens\n0,9,3.0,100.0\n{line}\n0,19,2.0,200.0\n"
    series = read_record(make(tmp_path / "run", csv)).series["train/nats_per_char"]
    np.testing.assert_array_equal(series.values, [3.0, 2.0])
    np.testing.assert_array_equal(series.steps, [9, 19])
    np.testing.assert_array_equal(series.tokens, [100, 200])


@pytest.mark.parametrize("number", ["²", "9" * 5000, "x"])
def test_a_block_that_has_no_number_has_a_place(tmp_path, number):
    csv = f"step,a/blocks.1/x,a/blocks.{number}/x\n0,1.0,1.0\n"
    record = read_record(make(tmp_path / "run", csv))
    assert list(layer_series(record, Quantity("x", "", group="a"))) == [f"blocks.{number}", "blocks.1"]


def test_a_folder_that_may_not_be_read_is_not_found(tmp_path, monkeypatch):
    open_, closed = make(tmp_path / "open"), make(tmp_path / "closed")
    stat = os.stat

    def refuse(path, *args, **options):
        if not isinstance(path, int) and Path(os.fsdecode(path)).parent == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *args, **options)

    monkeypatch.setattr(os, "stat", refuse)
    assert find_runs(f"{tmp_path}/*") == [open_]


def test_a_run_with_several_names_is_found_once_by_its_own(tmp_path):
    run = make(tmp_path / "run")
    (tmp_path / "a").symlink_to(run)
    (tmp_path / "loop").symlink_to(tmp_path)
    assert find_runs(f"{tmp_path}/**") == [run]
    assert find_runs(f"{tmp_path}/a") == [tmp_path / "a"]


def test_a_name_that_is_no_text_is_made_some(tmp_path):
    record = read_record(make(tmp_path / os.fsdecode(b"run\xff")))
    assert name_runs([record]) == ["run?"]
