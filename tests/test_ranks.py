"""Which process of a training writes, and which starts of several processes are refused; here in one process."""

import pytest
from programs import train, write_text

from lipformer.errors import UsageError
from lipformer.runs import layout
from lipformer.runs.folder import claim_folder, recorded, write_metrics
from lipformer.runs.outcome import Outcome
from lipformer.system.ranks import rank

TORCHRUN = {
    "RANK": "1",
    "LOCAL_RANK": "0",
    "GROUP_RANK": "1",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
}
"""What torchrun sets on the second of two machines with one device each."""


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)


def set_all(monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("variables", "number"),
    [
        ({}, 0),
        ({"LOCAL_RANK": "0", "WORLD_SIZE": "2"}, 0),  # Lightning sets them in the first process too
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, 1),
        ({"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, 5),
        (TORCHRUN, 1),
    ],
)
def test_the_rank_is_that_among_all_machines(variables, number, monkeypatch):
    set_all(monkeypatch, variables)
    assert rank() == number


def test_the_first_process_of_the_second_machine_writes_nothing_but_its_log(monkeypatch, tmp_path):
    set_all(monkeypatch, TORCHRUN)
    claim_folder(tmp_path)
    with recorded(tmp_path, layout.TRAIN):
        write_metrics(tmp_path, {"steps": 1})
    assert [file.name for file in tmp_path.iterdir()] == ["train_rank1.log"]


def test_the_first_process_may_come_last(monkeypatch, tmp_path):
    (tmp_path / "train_rank1.log").touch()
    (tmp_path / "train_rank12.log").touch()
    claim_folder(tmp_path)
    for name in ("train_rank0.log", "train.log", "train_rank1.log.old"):
        (tmp_path / name).touch()
        with pytest.raises(UsageError, match="is not empty"):
            claim_folder(tmp_path)
        (tmp_path / name).unlink()


def test_no_process_writes_its_log_into_a_folder_of_another_run(monkeypatch, tmp_path):
    set_all(monkeypatch, TORCHRUN)
    Outcome("running", None).write(tmp_path)
    claim_folder(tmp_path)  # the first process was there before
    Outcome().write(tmp_path)
    with pytest.raises(UsageError, match="is not empty"):
        claim_folder(tmp_path)


REFUSED = {
    "a sweep": ({}, ("-m", "trainer.num_nodes=2"), "trainer.num_nodes=2 does not go with -m"),
    "an incomplete environment": (
        {"RANK": "0", "WORLD_SIZE": "2"},
        ("trainer.devices=2",),
        "RANK=0 is set, but LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not: start all processes by torchrun",
    ),
    "a folder of its own": (TORCHRUN, ("trainer.num_nodes=2",), "RANK=1: processes that are started one by one share"),
    "more processes than devices": (
        {**TORCHRUN, "RANK": "0"},
        ("hydra.run.dir=run",),
        "this process was started as number 0 of 2 (RANK, LOCAL_RANK, WORLD_SIZE), but trainer.devices=1 "
        "trainer.num_nodes=1 makes it number 0 of 1",
    ),
    "a rank without others": (
        {"LOCAL_RANK": "1"},
        ("hydra.run.dir=run",),
        "this process was started as number 1 of 1 (RANK, LOCAL_RANK, WORLD_SIZE), but trainer.devices=1",
    ),
    "a rank and no others": (
        {"RANK": "0"},
        ("hydra.run.dir=run", "trainer.devices=2"),
        "RANK=0 is set, but LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT is not",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_starts_that_are_refused(case, monkeypatch, tmp_path, capsys):
    variables, options, expected = REFUSED[case]
    text = write_text(tmp_path / "text.txt")
    monkeypatch.chdir(tmp_path)
    set_all(monkeypatch, variables)
    assert train(monkeypatch, f"data.train={text}", *options) == (1 if "-m" in options else 2)  # 1: of the sweep
    assert expected in capsys.readouterr().err


def test_a_launcher_of_one_process_needs_nothing(monkeypatch, tmp_path):
    set_all(monkeypatch, {"RANK": "0", "WORLD_SIZE": "1"})
    text = write_text(tmp_path / "text.txt")
    assert train(monkeypatch, f"data.train={text}", f"hydra.run.dir={tmp_path / 'run'}") == 0


def test_a_process_that_is_ending_is_not_killed_for_another_that_has_failed(monkeypatch):
    """Lightning's observer kills the process that it is in, once one that this has started has ended by an error."""
    from types import SimpleNamespace

    from lightning_fabric.strategies.launchers.subprocess_script import _ChildProcessObserver
    from pytorch_lightning.plugins.environments import LightningEnvironment
    from pytorch_lightning.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

    from lipformer.training.callbacks.stopping import CleanStop

    killed = []
    monkeypatch.setattr(_ChildProcessObserver, "_terminate_all", lambda self: killed.append(True))
    for watched in (True, False):
        launcher = _SubprocessScriptLauncher(LightningEnvironment(), num_processes=2, num_nodes=1)
        launcher.procs.append(SimpleNamespace(poll=lambda: 1, returncode=1, pid=0))
        observer = _ChildProcessObserver(child_processes=launcher.procs, main_pid=0)
        if not watched:
            trainer = SimpleNamespace(strategy=SimpleNamespace(launcher=launcher))
            CleanStop().on_exception(trainer, None, RuntimeError())
        assert observer._run()
    assert killed == [True]
