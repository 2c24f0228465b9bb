"""In what the configurations of runs differ."""

from pathlib import Path

import yaml

from lipformer.runs.differences import config_differences, environment_differences
from lipformer.runs.environment import Environment
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


def test_differences_of_environments():
    """Of the last process of each run."""

    def ran_in(*torch_versions):
        fields = {"commits": {}, "machine": {"gpus": []}, "threads": {}, "determinism": {}, "corpus": {}}
        environments = tuple(
            Environment(started=f"{seed}", command=f"{seed}", seed=seed, versions={"torch": version}, **fields)
            for seed, version in enumerate(torch_versions)
        )
        return RunRecord(Path("run"), {}, None, {}, {}, None, None, environments)

    assert environment_differences([ran_in("2.6", "2.7"), ran_in("2.7")]) == {}
    assert environment_differences([ran_in("2.6"), ran_in("2.7")]) == {"versions.torch": ["2.6", "2.7"]}
    assert environment_differences([ran_in("2.6"), ran_in()])["versions.torch"] == ["2.6", ""]
