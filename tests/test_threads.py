"""How many threads a training uses, and how they wait."""

import os
import subprocess
import sys

import pytest
from programs import ROOT, evaluate, train, write_text

from lipformer.system.openmp import CHOSEN_BY_USER, CORES, SPIN_COUNT, on_cores
from lipformer.training import threads
from lipformer.training.threads import SMALL, choose_threads


@pytest.fixture
def many(monkeypatch):
    monkeypatch.setattr(threads, "DEFAULT", 7)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return monkeypatch


def test_small_model_takes_one_thread(many):
    assert choose_threads(None, width=64, batch_tokens=1024) == 1
    assert choose_threads(None, width=1, batch_tokens=SMALL - 1) == 1


def test_large_model_takes_what_torch_chooses(many):
    assert choose_threads(None, width=128, batch_tokens=4096) == 7
    assert choose_threads(None, width=1, batch_tokens=SMALL) == 7


def test_what_the_user_chose_is_taken(many):
    assert choose_threads(3, width=64, batch_tokens=1024) == 3
    assert choose_threads(1, width=128, batch_tokens=4096) == 1
    many.setenv("OMP_NUM_THREADS", "7")
    assert choose_threads(None, width=64, batch_tokens=1024) == 7


def test_processes_share_the_cores(many):
    for processes, threads_each in {1: 7, 2: 3, 3: 2, 9: 1}.items():
        assert choose_threads(None, width=1, batch_tokens=SMALL, processes=processes) == threads_each
    assert choose_threads(4, width=1, batch_tokens=SMALL, processes=9) == 4
    many.setenv("OMP_NUM_THREADS", "7")
    assert choose_threads(None, width=1, batch_tokens=SMALL, processes=9) == 7


def test_a_share_of_the_cores_is_not_what_the_user_chose(many):
    """A launcher sets OMP_NUM_THREADS for a job, before torch is imported."""
    many.setenv("OMP_NUM_THREADS", "7")
    many.setenv(CORES, "7")
    assert choose_threads(None, width=64, batch_tokens=1024) == 1
    assert choose_threads(None, width=128, batch_tokens=4096) == 7
    assert choose_threads(None, width=128, batch_tokens=4096, num_workers=3) == 4
    assert choose_threads(None, width=128, batch_tokens=4096, num_workers=9) == 1
    assert choose_threads(5, width=128, batch_tokens=4096, num_workers=3) == 5


def test_cores_are_shared_unless_the_user_has_chosen(many):
    assert on_cores(3) == {"OMP_NUM_THREADS": "3", CORES: "3"}
    many.setenv("OMP_NUM_THREADS", "5")
    assert on_cores(3) == {"OMP_NUM_THREADS": "5"}


def test_training_uses_the_rule(many, tmp_path):
    seen = []
    many.setattr("torch.set_num_threads", seen.append)
    text = write_text(tmp_path / "text.txt")
    small = (f"data.train={text}", "trainer.threads=null", "trainer.max_steps=1")
    assert train(many, *small, f"hydra.run.dir={tmp_path / 'small'}") == 0
    assert train(many, *small, "data.batch_tokens=10000", f"hydra.run.dir={tmp_path / 'large'}") == 0
    assert seen == [1, 7]


def test_training_leaves_cores_to_its_workers(many, tmp_path):
    seen = []
    many.setattr("torch.set_num_threads", seen.append)
    many.setenv(CORES, "7")
    text = write_text(tmp_path / "text.txt")
    options = ("trainer.threads=null", "trainer.max_steps=1", "data.batch_tokens=10000", "data.num_workers=1")
    assert train(many, f"data.train={text}", *options, f"hydra.run.dir={tmp_path / 'run'}") == 0
    assert seen == [6]


def _spin_count(**environment: str) -> str:
    """What train.py and evaluate.py leave to OpenMP, which reads it when torch is imported."""
    inherited = {name: value for name, value in os.environ.items() if name not in CHOSEN_BY_USER}
    code = (
        "import sys, os, lipformer.program.cli; assert 'torch' not in sys.modules; "
        "print(os.environ.get('GOMP_SPINCOUNT', '-'))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={**inherited, **environment}, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_programs_set_a_spin_count_before_torch_is_imported():
    assert _spin_count() == SPIN_COUNT


@pytest.mark.parametrize("name", CHOSEN_BY_USER)
def test_how_the_user_lets_threads_wait_is_respected(name):
    value = {"OMP_WAIT_POLICY": "active"}.get(name, "17")
    assert _spin_count(**{name: value}) == ("17" if name == "GOMP_SPINCOUNT" else "-")


@pytest.mark.parametrize(("program", "key"), [(train, "trainer.threads"), (evaluate, "threads")])
@pytest.mark.parametrize("value", [0, 10**8])
def test_a_count_that_no_system_has_is_refused(program, key, value, monkeypatch, tmp_path, capsys):
    text = (f"data.train={tmp_path / 'none'}",) if program is train else (f"checkpoint={tmp_path}",)
    assert program(monkeypatch, *text, f"{key}={value}", f"hydra.run.dir={tmp_path / 'run'}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {key}={value}: it must be at least 1 and at most 4096, or null")
