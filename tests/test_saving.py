"""Nothing is lost in saving: by a kill, by a full disk, or on another file system than the temporary folder's."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from faulty_train import fill
from programs import ROOT, train, write_text
from small_disk import disk_of_a_megabyte  # noqa: F401

from lipformer.assembly.checkpoint import find_checkpoint, load_run, read_checkpoint
from lipformer.errors import WriteError
from lipformer.runs.outcome import Outcome, read_outcome
from lipformer.system.atomic import naming, replace_text, replacing
from lipformer.training.checkpoint_io import AtomicCheckpointIO
from lipformer.training.language import LanguageModule

SHARED_MEMORY = Path("/dev/shm")


def names(folder):
    return {path.name for path in folder.iterdir()}


# --- one file ----------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_and_the_one_before_it_gets_its_name(tmp_path):
    file, previous = tmp_path / "file", tmp_path / "previous"
    for text in ("one", "two", "three"):
        with replacing(file, "w", previous=previous) as stream:
            stream.write(text)
    assert (file.read_text(), previous.read_text()) == ("three", "two")
    assert names(tmp_path) == {"file", "previous"}


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_a_file_with_a_previous_one_is_never_missing_to_a_reader(tmp_path, monkeypatch, links):
    file, previous = tmp_path / "file", tmp_path / "previous"
    real, seen = os.replace, []

    def replace(old, new):
        real(old, new)
        seen.append((file.is_file(), names(tmp_path)))

    def no_links(old, new):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "replace", replace)
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    for text in ("one", "two", "three"):
        with replacing(file, "w", previous=previous) as stream:
            stream.write(text)
    assert (file.read_text(), previous.read_text()) == ("three", "two")
    assert names(tmp_path) == {"file", "previous"}
    assert all(there for there, _ in seen) == links


def test_a_kill_between_the_two_names_is_made_good_by_the_next_saving(tmp_path):
    file, previous = tmp_path / "file", tmp_path / "previous"
    file.write_text("one")
    os.link(file, previous)  # what a kill leaves after the old content got its second name
    for text in ("two", "three"):
        with replacing(file, "w", previous=previous) as stream:
            stream.write(text)
    assert (file.read_text(), previous.read_text()) == ("three", "two")
    assert names(tmp_path) == {"file", "previous"}


def test_a_file_keeps_its_content_until_the_new_one_is_on_the_disk(tmp_path, monkeypatch):
    seen = []
    synced = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: (seen.append((tmp_path / "file").read_text()), synced(number)))
    (tmp_path / "file").write_text("first")
    replace_text(tmp_path / "file", "second")
    assert seen == ["first", "second"], "the file is flushed before it gets its name, the folder after it"


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), OSError(errno.EIO, "broken")])
def test_an_error_leaves_what_was_there_and_nothing_else(tmp_path, error):
    (tmp_path / "file").write_text("old")
    kind = WriteError if isinstance(error, OSError) else type(error)

    def write():
        with replacing(tmp_path / "file", "w", previous=tmp_path / "previous") as stream:
            stream.write("new")
            raise error

    with pytest.raises(kind):
        write()
    assert (tmp_path / "file").read_text() == "old"
    assert names(tmp_path) == {"file"}


def test_the_systems_errors_name_the_file(tmp_path):
    with pytest.raises(WriteError, match=r"nowhere/file cannot be written: No such file or directory$"):
        replace_text(tmp_path / "nowhere" / "file", "text")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    expected = r"x\.csv cannot be written: No space left on device; make room, what was there before is whole"
    with pytest.raises(WriteError, match=expected), naming(Path("x.csv")):
        raise RuntimeError("unexpected pos 64 vs 0") from full


def test_an_error_that_is_handled_is_not_taken_for_one_of_the_file():
    def save():
        with naming(Path("x.csv")):
            raise ValueError("of its own")

    try:
        raise OSError(errno.ENOSPC, "full")
    except OSError:
        with pytest.raises(ValueError, match="of its own"):
            save()


# --- checkpoints -------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys, torch
from pathlib import Path
from lipformer.training.checkpoint_io import AtomicCheckpointIO

torch.set_num_threads(1)  # OpenMP's threads do not survive a fork

def killed_at(call):
    calls = 0
    def count(*arguments, of):
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return of(*arguments)
    for name in ("write", "fsync", "link", "replace"):
        of = getattr(os, name)
        setattr(os, name, lambda *arguments, of=of: count(*arguments, of=of))

def save(folder, step):
    AtomicCheckpointIO().save_checkpoint({"step": step, "x": torch.full((10**6,), step)}, folder / "last.ckpt")

for call in range(1, 8):
    folder = Path(sys.argv[1]) / str(call) / "checkpoints"
    save(folder, 1)
    save(folder, 2)
    if os.fork() == 0:
        killed_at(call)
        save(folder, 3)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_kill_at_each_step_of_saving_leaves_the_last_checkpoint_or_the_one_before(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], capture_output=True, text=True, timeout=120)
    # Flushed, linked, renamed, renamed, the folder flushed: five calls in which a kill can come, and none after them.
    assert done.stdout.split() == [str(-signal.SIGKILL)] * 5 + ["0"] * 2, done.stderr
    steps = {}
    for call in range(1, 8):
        assert (tmp_path / str(call) / "checkpoints" / "last.ckpt").is_file()
        checkpoint = torch.load(find_checkpoint(tmp_path / str(call), "last"), weights_only=True)
        assert (checkpoint["x"] == checkpoint["step"]).all()
        steps[call] = checkpoint["step"]
    assert steps == {1: 2, 2: 2, 3: 2, 4: 2, 5: 3, 6: 3, 7: 3}


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="no file system in memory")
def test_killed_at_random_moments_on_another_file_system(kills, tmp_path):
    """A table of bench/kills.py: the row of our own way, and that of Lightning's, which loses some."""
    command = [sys.executable, ROOT / "bench" / "kills.py", f"--kills={kills}", "--megabytes=4"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (row,) = (line for line in done.stdout.splitlines() if "AtomicCheckpointIO" in line)
    assert [cell.strip() for cell in row.split("|")][3:6] == [str(kills), "0", "0"], row


def test_training_keeps_the_last_two(tmp_path, monkeypatch):
    text = write_text(tmp_path / "text.txt")
    folder = tmp_path / "run"
    options = ("trainer.max_steps=9", "trainer.val_every_steps=3")
    assert train(monkeypatch, f"data.train={text}", *options, f"hydra.run.dir={folder}") == 0
    assert names(folder / "checkpoints") == {"best.ckpt", "last.ckpt", "previous.ckpt"}
    steps = [read_checkpoint(folder / "checkpoints" / name)["global_step"] for name in ("previous.ckpt", "last.ckpt")]
    assert steps == [6, 9]


def test_a_run_whose_last_checkpoint_is_cut_off_continues_from_the_one_before(tmp_path, monkeypatch, caplog):
    text = write_text(tmp_path / "text.txt")
    ends = {}
    for name in ("whole", "first"):
        folder = tmp_path / name
        assert train(monkeypatch, f"data.train={text}", "trainer.max_steps=6", f"hydra.run.dir={folder}") == 0
    last = tmp_path / "first" / "checkpoints" / "last.ckpt"
    os.truncate(last, last.stat().st_size // 2)
    assert load_run(tmp_path / "first", which="last").step == 3
    assert train(monkeypatch, f"resume={tmp_path / 'first'}", f"hydra.run.dir={tmp_path / 'second'}") == 0
    assert "last.ckpt is damaged: taking" in (tmp_path / "second" / "train.log").read_text()
    for name in ("whole", "second"):
        ends[name] = load_run(tmp_path / name, which="last").model.state_dict()
    assert all(torch.equal(ends["whole"][key], ends["second"][key]) for key in ends["whole"])


def test_a_damaged_best_checkpoint_is_not_taken_along(tmp_path, monkeypatch):
    text = write_text(tmp_path / "text.txt")
    assert train(monkeypatch, f"data.train={text}", f"hydra.run.dir={tmp_path / 'first'}") == 0
    best = tmp_path / "first" / "checkpoints" / "best.ckpt"
    os.truncate(best, 1000)
    more = (f"resume={tmp_path / 'first'}", "trainer.max_steps=4", f"hydra.run.dir={tmp_path / 'second'}")
    assert train(monkeypatch, *more) == 0
    assert f"{best} is damaged and left out" in (tmp_path / "second" / "train.log").read_text()
    assert load_run(tmp_path / "second").step == 4


# --- a disk that fills -------------------------------------------------------------------------------------------


def at_step(step, action, monkeypatch):
    """Do `action` in the middle of the training step that follows `step`."""
    original = LanguageModule.training_step

    def training_step(self, batch, batch_idx):
        if self.global_step == step:
            action()
        return original(self, batch, batch_idx)

    monkeypatch.setattr(LanguageModule, "training_step", training_step)


def test_a_disk_that_fills_ends_the_run_with_one_line_and_loses_nothing(small_disk, tmp_path, monkeypatch, capsys):
    text = write_text(tmp_path / "text.txt")
    folder = small_disk / "run"
    at_step(4, lambda: fill(small_disk, but=16_384), monkeypatch)
    options = (f"data.train={text}", "trainer.max_steps=9", f"hydra.run.dir={folder}", "trainer.report=true")
    assert train(monkeypatch, *options) == 1
    output = capsys.readouterr()
    (line,) = output.err.splitlines()
    assert line.startswith(f"error: {folder}/checkpoints/")
    assert line.endswith("ckpt cannot be written: No space left on device; make room, what was there before is whole")
    outcome = read_outcome(folder)
    assert (outcome.status, outcome.exit_code, f"error: {outcome.reason}") == ("failed", 1, line)
    for name in ("best", "last"):
        assert load_run(folder, which=name).step == 3
    assert not list(folder.rglob(".*.part"))
    assert not (folder / "report.html").exists()
    assert "look at it" not in output.out, "there is no report to point to"


@pytest.fixture
def full(monkeypatch):
    """Let flushing fail for files of the given names, as a full disk does on some file systems."""
    synced, refused = os.fsync, set()

    def fsync(number):
        place = os.readlink(f"/proc/self/fd/{number}") if sys.platform == "linux" else ""
        if any(f".{name}." in place for name in refused):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        synced(number)

    monkeypatch.setattr(os, "fsync", fsync)
    return refused


linux = pytest.mark.skipif(sys.platform != "linux", reason="the name behind a file descriptor is known on Linux")


@linux
def test_a_signal_on_a_full_disk_is_still_a_signal(tmp_path, monkeypatch, capsys, full):
    text = write_text(tmp_path / "text.txt")
    folder = tmp_path / "run"

    def interrupt():
        full.add("last.ckpt")
        signal.raise_signal(signal.SIGINT)

    at_step(4, interrupt, monkeypatch)
    assert train(monkeypatch, f"data.train={text}", "trainer.max_steps=9", f"hydra.run.dir={folder}") == 130
    assert read_outcome(folder).status == "interrupted"
    assert "last.ckpt stays as it was: " in (folder / "train.log").read_text()
    assert load_run(folder, which="last").step == 3


@linux
def test_figures_that_cannot_be_written_fail_the_run_and_hide_no_other_reason(tmp_path, monkeypatch, capsys, full):
    text = write_text(tmp_path / "text.txt")
    full.add("metrics.json")
    assert train(monkeypatch, f"data.train={text}", f"hydra.run.dir={tmp_path / 'run'}") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "run/metrics.json cannot be written: No space left" in line

    def fail():
        raise RuntimeError("of another kind")

    at_step(1, fail, monkeypatch)
    assert train(monkeypatch, f"data.train={text}", f"hydra.run.dir={tmp_path / 'failed'}") == 1
    assert capsys.readouterr().err == "error: RuntimeError: of another kind\n"


@linux
def test_a_status_finds_room_in_its_own_place(tmp_path, monkeypatch, full):
    text = write_text(tmp_path / "text.txt")
    at_step(1, lambda: full.add("status.json"), monkeypatch)
    assert train(monkeypatch, f"data.train={text}", f"hydra.run.dir={tmp_path / 'run'}") == 0
    assert read_outcome(tmp_path / "run").status == "finished"


@linux
def test_a_status_that_cannot_be_written_at_all_leaves_the_lock(tmp_path, monkeypatch, capsys, full):
    def lose_the_status():
        full.add("status.json")
        (tmp_path / "run" / "status.json").unlink()

    text = write_text(tmp_path / "text.txt")
    at_step(1, lose_the_status, monkeypatch)
    assert train(monkeypatch, f"data.train={text}", f"hydra.run.dir={tmp_path / 'run'}") == 1
    assert "run/status.json cannot be written: No space left" in capsys.readouterr().err
    assert (tmp_path / "run" / "run.lock").exists()


@linux
def test_metrics_csv_is_rewritten_whole_or_not_at_all(tmp_path, monkeypatch, capsys, full):
    """The first validation brings new columns."""
    text = write_text(tmp_path / "text.txt")
    full.add("metrics.csv")
    assert train(monkeypatch, f"data.train={text}", f"hydra.run.dir={tmp_path / 'run'}") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "run/metrics.csv cannot be written: No space left" in line
    header, *rows = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert "val/nats_per_char" not in header
    assert rows


def test_a_report_that_cannot_be_written_is_not_pointed_to(tmp_path, monkeypatch, capsys):
    def render(records, folder):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("lipformer.report.page.render", render)
    text = write_text(tmp_path / "text.txt")
    folder = tmp_path / "run"
    options = (f"data.train={text}", f"hydra.run.dir={folder}", "trainer.report=true")
    assert train(monkeypatch, *options) == 0
    assert not (folder / "report.html").exists()
    assert "look at it in" not in capsys.readouterr().out
    assert json.loads((folder / "status.json").read_text())["status"] == "finished"


def test_torch_names_no_file_but_we_do(tmp_path):
    """What torch raises of a file that can grow no more hides the system's error."""
    code = (
        "import resource, torch\n"
        "from lipformer.training.checkpoint_io import AtomicCheckpointIO\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))\n"
        "AtomicCheckpointIO().save_checkpoint({'x': torch.zeros(10**6)}, 'checkpoints/last.ckpt')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    expected = "lipformer.errors.WriteError: checkpoints/last.ckpt cannot be written: File too large"
    assert done.stderr.splitlines()[-1] == expected, done.stderr
    assert not names(tmp_path / "checkpoints")


def test_a_status_that_is_no_file_yet_is_written_whole(tmp_path):
    Outcome("failed", 1, "why").write(tmp_path)
    assert names(tmp_path) == {"status.json"}
    AtomicCheckpointIO().save_checkpoint({"x": 1}, tmp_path / "new" / "last.ckpt")
    assert names(tmp_path / "new") == {"last.ckpt"}
