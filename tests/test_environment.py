"""environment.json: what a run ran in is recorded, read again in any state, and holds nothing private."""

import getpass
import hashlib
import json
import os
import socket
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from programs import ROOT, evaluate, train, write_text

from lipformer.runs.environment import Environment, add_environment, read_environments
from lipformer.system import machine
from lipformer.system.source import code_commit
from lipformer.training.environment import describe_environment
from lipformer.version import __version__

SOME = Environment(
    started="2026-01-02T03:04:05+00:00",
    command="python train.py",
    seed=0,
    versions={"python": "3.11.7", "torch": "2.13.0"},
    commits={"lipformer": None},
    machine={"cpu": "some"},
    threads={"torch": 1},
    determinism={"deterministic algorithms": True},
    corpus={"train": {"sha256": "0" * 64, "lines": 1, "tokens": 2}},
)


def test_a_training_records_what_it_ran_in(tmp_path, monkeypatch):
    text = write_text(tmp_path / "text.txt")
    folder = tmp_path / "run"
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setenv("LIPFORMER_SECRET", "hunter2")
    assert train(monkeypatch, f"data.train={text}", "seed=7", f"hydra.run.dir={folder}") == 0
    (found,) = read_environments(folder)
    assert found.command.startswith("python train.py data=text_files ")
    assert f"data.train={text} seed=7" in found.command
    assert found.seed == 7
    assert found.versions["torch"] == torch.__version__
    assert {found.versions[name] is None for name in ("python", "pytorch-lightning", "hydra-core", "numpy")} == {False}
    assert found.versions["lipformer"] == __version__
    assert found.commits["lipformer"] == code_commit()
    assert found.machine["cores"] >= 1
    assert found.machine["gpus"] == []
    assert found.threads["torch"] == 1
    assert found.threads["OMP_WAIT_POLICY"] == "passive"
    assert found.determinism["deterministic algorithms"] is True
    assert list(found.corpus) == ["train", "valid"], "test is not read in a training"
    lines = text.read_text().splitlines()
    cut = "".join(f"{line}\n" for line in lines[: round(0.9 * len(lines))])
    assert found.corpus["train"] == {
        "sha256": hashlib.sha256(cut.encode()).hexdigest(),
        "lines": 90,
        "tokens": len(cut),
    }
    checkpoint = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert checkpoint["lipformer"]["corpus"] == found.corpus
    assert "hunter2" not in (folder / "environment.json").read_text()


def test_it_names_neither_user_nor_host_nor_a_place_that_was_not_typed(tmp_path, monkeypatch):
    monkeypatch.setenv("USER", "a-user-of-this-test")
    monkeypatch.setenv("HOME", "/home/a-user-of-this-test")
    told = json.dumps(asdict(describe_environment(seed=0, fingerprints={}, command=None)))
    for private in ("a-user-of-this-test", str(ROOT), str(Path.cwd()), str(Path.home()), torch.__file__):
        assert private not in told
    for name in (socket.gethostname(), getpass.getuser()):
        assert len(name) < 6 or name not in told


def test_each_process_adds_an_entry(tmp_path):
    assert read_environments(tmp_path) == []
    add_environment(tmp_path, SOME)
    later = replace(SOME, started="2026-01-03T03:04:05+00:00")
    add_environment(tmp_path, later)
    assert read_environments(tmp_path) == [SOME, later]


def test_only_the_first_rank_writes(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    add_environment(tmp_path, SOME)
    assert list(tmp_path.iterdir()) == []


ENTRY = asdict(SOME)


@pytest.mark.parametrize(
    "told",
    [
        "",
        "{}",
        "[",
        "3",
        "[3, null, []]",
        json.dumps([{**ENTRY, "seed": "x"}]),
        json.dumps([{**ENTRY, "machine": []}]),
        json.dumps([{**ENTRY, "more": 1}]),
        json.dumps([{name: ENTRY[name] for name in list(ENTRY)[1:]}]),
    ],
)
def test_a_broken_entry_is_left_out(tmp_path, told):
    (tmp_path / "environment.json").write_text(told)
    assert read_environments(tmp_path) == []
    add_environment(tmp_path, SOME)
    assert read_environments(tmp_path) == [SOME]


def test_the_processor_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr("platform.processor", lambda: "of another system")
    assert machine.cpu_model() == "of another system"
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz \nflags\t: fpu\n")
    assert machine.cpu_model() == "Some CPU @ 2 GHz"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(("trainer.deterministic=null",), True), (("trainer=auto", "trainer.accelerator=cpu"), True)]
    + [((f"trainer.deterministic={value}",), value == "true") for value in ("true", "false")],
)
def test_the_cpu_is_deterministic_unless_told_otherwise_and_leaves_no_flag(arguments, expected, tmp_path, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    text, folder = write_text(tmp_path / "text.txt"), tmp_path / "run"
    torch.use_deterministic_algorithms(not expected, warn_only=True)  # as an earlier job of the process could leave it
    try:
        assert train(monkeypatch, *arguments, f"data.train={text}", f"hydra.run.dir={folder}") == 0
        assert read_environments(folder)[-1].determinism["deterministic algorithms"] is expected
        assert torch.are_deterministic_algorithms_enabled() is not expected
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    finally:
        torch.use_deterministic_algorithms(False)


def test_an_evaluation_records_it_too_and_warns_of_another_text(tmp_path, monkeypatch, capsys):
    text = write_text(tmp_path / "text.txt")
    assert train(monkeypatch, f"data.train={text}", f"hydra.run.dir={tmp_path / 'run'}") == 0
    (trained,) = read_environments(tmp_path / "run")
    warning = "this is another text than that of the training, do not compare their figures: valid was 5 lines, "

    def evaluated(name, *arguments):
        capsys.readouterr()
        folder = tmp_path / name
        options = (f"checkpoint={tmp_path / 'run'}", "split=valid", *arguments)
        assert evaluate(monkeypatch, *options, f"hydra.run.dir={folder}") == 0
        (found,) = read_environments(folder)
        return found, capsys.readouterr().out

    found, said = evaluated("same")
    assert found.corpus == {"valid": trained.corpus["valid"]}
    assert found.command.startswith("python evaluate.py checkpoint=")
    assert "another text" not in said
    lines = text.read_text().splitlines()
    changed = tmp_path / "changed.txt"
    changed.write_text("\n".join([*lines[:90], *lines[95:], *lines[90:95]]))
    _, said = evaluated("asked for", f"data.train={changed}")
    assert "another text" not in said
    text.write_text(changed.read_text())
    found, said = evaluated("changed")
    assert warning in said
    assert found.corpus["valid"]["sha256"] != trained.corpus["valid"]["sha256"]
    found, _ = evaluated("written", "generate.samples=1", "generate.seed=5")
    assert (found.seed, found.corpus) == (5, {})
