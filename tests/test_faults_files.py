"""Files that cannot be written, are damaged or have changed: nothing is lost, and one line says so."""

import os
import random
import shutil
import subprocess

import pytest
from fault_trials import RUN, SEED, assert_equal_runs, run_faulty, train_on
from programs import write_text
from small_disk import disk_of_a_megabyte  # noqa: F401

from lipformer.assembly.checkpoint import read_checkpoint
from lipformer.runs.outcome import read_outcome


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    done = train_on(folder / "run", *RUN, f"data.train={text}", by=folder)
    assert done.code == 0, done.errors
    return folder / "run"


def only_line(errors):
    (line,) = errors.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.fault("full disk")
def test_a_full_disk(text, whole, small_disk, tmp_path, record_property):
    step = random.Random(SEED).randint(4, 8)
    record_property("step", step)
    record_property("way", "continued")
    options = (*RUN, f"data.train={text}", f"hydra.run.dir={small_disk / 'run'}")
    done = run_faulty(*options, folder=tmp_path, fault=f"full-disk step {step}")
    assert done.code == 1
    line = only_line(done.errors)
    assert line.endswith("cannot be written: No space left on device; make room, what was there before is whole")
    assert read_outcome(small_disk / "run").status == "failed"
    (small_disk / "filler").unlink()  # make room
    done = train_on(tmp_path / "continued", f"resume={small_disk / 'run'}", by=tmp_path)
    assert done.code == 0, done.errors
    assert_equal_runs(whole, tmp_path / "continued")


@pytest.mark.fault("folder that becomes read-only")
def test_checkpoints_that_become_read_only(text, whole, small_disk, tmp_path, record_property):
    step = random.Random(SEED + 1).randint(4, 8)
    record_property("step", step)
    record_property("way", "continued")
    folder = tmp_path / "run"
    try:
        options = (*RUN, f"data.train={text}", f"hydra.run.dir={folder}")
        done = run_faulty(*options, folder=tmp_path, fault=f"read-only step {step}")
    finally:
        subprocess.run(["umount", folder / "checkpoints"], check=True)
    assert done.code == 1, done.errors
    assert f"{folder / 'checkpoints'}" in only_line(done.errors)
    assert done.errors.endswith("ckpt cannot be written: Read-only file system\n")
    assert read_outcome(folder).status == "failed"
    done = train_on(tmp_path / "continued", f"resume={folder}", by=tmp_path)
    assert done.code == 0, done.errors
    assert_equal_runs(whole, tmp_path / "continued")


@pytest.mark.fault("folder that is read-only from the start")
def test_a_run_folder_that_cannot_be_made(text, small_disk, tmp_path):
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    done = train_on(small_disk / "run", *RUN, f"data.train={text}", by=tmp_path)
    assert done.code in (1, 2)
    assert f"{small_disk / 'run'}" in only_line(done.errors)
    assert "Read-only file system" in done.errors


@pytest.mark.fault("last.ckpt cut off")
def test_a_truncated_last_checkpoint(text, whole, tmp_path, record_property):
    size = random.Random(SEED).random()
    record_property("way", "continued")
    options = (*RUN, f"data.train={text}", "hydra.run.dir=cut")
    done = run_faulty(*options, folder=tmp_path, fault="SIGKILL step 7")
    assert done.code == -9
    last = tmp_path / "cut" / "checkpoints" / "last.ckpt"
    os.truncate(last, int(last.stat().st_size * size))
    done = train_on(tmp_path / "continued", "resume=cut", by=tmp_path)
    assert done.code == 0, done.errors
    assert "last.ckpt is damaged: taking cut/checkpoints/previous.ckpt" in done.output
    assert_equal_runs(whole, tmp_path / "continued")


@pytest.mark.fault("corpus changed")
@pytest.mark.parametrize("change", ["a character", pytest.param("an order", marks=pytest.mark.slow)])
def test_a_changed_corpus(change, text, tmp_path):
    """Refused before anything is made, whichever way the text has changed; with the old one back the run goes on."""
    own = tmp_path / "text.txt"
    shutil.copy(text, own)
    options = (*RUN, f"data.train={own}", "hydra.run.dir=killed")
    assert run_faulty(*options, folder=tmp_path, fault="SIGKILL step 4").code == -9
    lines = own.read_text().splitlines(keepends=True)
    if change == "a character":
        lines[3] = lines[3].replace("a", "o", 1) if "a" in lines[3] else lines[3].replace("t", "o", 1)
    else:
        lines[10], lines[40] = lines[40], lines[10]
    own.write_text("".join(lines))
    done = train_on(tmp_path / "refused", "resume=killed", by=tmp_path)
    assert done.code == 2, done.output
    assert str(own) in only_line(done.errors)
    shutil.copy(text, own)
    done = train_on(tmp_path / "continued", "resume=killed", by=tmp_path)
    assert done.code == 0, done.errors
    assert read_checkpoint(tmp_path / "continued" / "checkpoints" / "last.ckpt")["global_step"] == 12
