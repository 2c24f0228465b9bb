"""In what the configurations of runs differ."""

from pathlib import Path

import yaml

from lipformer.runs.differences import config_differences
from lipformer.runs.record import RunRecord


def configured(text):
    return RunRecord(Path("run"), yaml.safe_load(text), None, {}, {}, None, None)


def test_differences_of_configurations():
    first = "lr: 0.1\nseed: 0\nattention: {kind: l2, locality: null}\noptimizer: {lr: 0.1, betas: [0.9, 0.98]}\n"
    second = "lr: 0.2\nseed: 0\nattention: {kind: dot}\noptimizer: {lr: 0.2, betas: [0.9, 0.99]}\ncompile: true\n"
    records = [configured(text) for text in (first, second)]
    assert config_differences(records) == {
        "lr": ["0.1", "0.2"],
        "attention.kind": ["l2", "dot"],
        "attention.locality": ["null", ""],
        "optimizer.betas": ["[0.9, 0.98]", "[0.9, 0.99]"],
        "compile": ["", "true"],
    }
    assert config_differences(records[:1]) == {}


def test_a_key_that_differs_otherwise_than_its_namesake_is_told():
    first, second, third = "lr: 1\no: {lr: 1}\n", "lr: 2\no: {lr: 1}\n", "lr: 2\no: {lr: 3}\n"
    records = [configured(text) for text in (first, second, third)]
    assert config_differences(records) == {"lr": ["1", "2", "2"], "o.lr": ["1", "1", "3"]}
