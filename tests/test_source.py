"""Which code runs: the commit is that of the code, and no git, foreign or slow, ends or delays a run."""

import subprocess
from pathlib import Path

import pytest
from programs import ROOT

from lipformer.system import source
from lipformer.system.source import code_commit, spell_command, typed_command, working_commit


def git_in(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder)},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def make_checkout(folder) -> Path:
    """A repository of one commit with one file in it."""
    file = folder / "lipformer" / "code.py"
    file.parent.mkdir(parents=True)
    file.write_text("one\n")
    git_in(folder, "init", "-q")
    git_in(folder, "add", ".")
    git_in(folder, "commit", "-q", "-m", "first")
    return file


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository in which the code would stand."""
    for name in ("GIT_DIR", "GIT_WORK_TREE"):
        monkeypatch.setenv(name, "/nowhere")  # of a hook that runs this, say
    file = make_checkout(tmp_path / "code")
    monkeypatch.setattr(source, "ROOT", tmp_path / "code")
    return file


def false_git(folder, monkeypatch, script):
    """Put a program called git, which does something else, before all others."""
    folder.mkdir()
    program = folder / "git"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_command_can_be_typed_again(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/lipformer-evaluate", "study=layer_norm"])
    assert typed_command() == "lipformer-evaluate study=layer_norm"
    monkeypatch.setattr("sys.argv", [str(ROOT / "lipformer" / "program" / "train.py"), "depth=2"])
    assert typed_command() == "lipformer train depth=2"
    monkeypatch.setattr("sys.argv", [str(ROOT / "train.py"), "depth=2"])
    assert typed_command() == "python train.py depth=2"
    assert spell_command("train.py", "name=a b", "depth=2") == "python train.py 'name=a b' depth=2"


def test_the_commit_is_that_of_the_code(checkout):
    head = git_in(checkout.parent, "rev-parse", "HEAD")
    assert code_commit() == head
    (checkout.parent / "new.txt").write_text("beside it\n")
    assert code_commit() == head
    checkout.write_text("two\n")
    assert code_commit() == f"{head}-dirty"


def test_an_installed_package_has_no_commit(checkout, monkeypatch):
    """Nor has one inside of somebody's repository."""
    monkeypatch.setattr(source, "ROOT", checkout.parent / "site-packages")
    assert code_commit() is None


def test_the_working_directory_has_a_commit_of_its_own(checkout, tmp_path, monkeypatch):
    mine = make_checkout(tmp_path / "mine")
    monkeypatch.chdir(mine.parent)
    head = git_in(mine.parent, "rev-parse", "HEAD")
    assert working_commit() == head
    mine.write_text("two\n")
    assert working_commit() == f"{head}-dirty"
    monkeypatch.chdir(checkout.parent)
    assert working_commit() is None, "it is that of the code"
    monkeypatch.chdir("/")
    assert working_commit() is None


def test_a_working_directory_that_was_removed(checkout, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert working_commit() is None


def test_without_git_there_is_no_commit(checkout, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert code_commit() is None


def test_git_that_refuses_or_hangs_is_no_error(checkout, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        false_git(tmp_path / "refuses", patch, "echo fatal: detected dubious ownership >&2; exit 128")
        assert (code_commit(), working_commit()) == (None, None)
    with monkeypatch.context() as patch:
        patch.setattr(source, "SECONDS", 0.2)
        false_git(tmp_path / "hangs", patch, f"touch {tmp_path}/asked; exec sleep 600")
        assert code_commit() is None
        assert (tmp_path / "asked").exists()


def test_git_starts_no_program_that_a_repository_names(checkout, tmp_path, monkeypatch):
    mine = make_checkout(tmp_path / "mine")
    program = tmp_path / "monitor"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(0o755)
    git_in(mine.parent, "config", "core.fsmonitor", str(program))
    monkeypatch.chdir(mine.parent)
    assert working_commit() is not None
    assert not (tmp_path / "started").exists()
    git_in(mine.parent, "status")
    assert (tmp_path / "started").exists(), "git itself would start it"
