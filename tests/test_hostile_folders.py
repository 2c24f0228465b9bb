"""Run folders that somebody sent: nothing in them hangs a reader, takes its memory, or acts on its terminal."""

import logging
import os
import signal
from pathlib import Path

import pytest
from hostile import ODD_FILES
from programs import evaluate, train
from rich.console import Console
from run_folders import write_run

from lipformer.assembly.checkpoint import find_checkpoint, load_run
from lipformer.data.text_lines import read_lines
from lipformer.errors import CheckpointError, DataError, UsageError
from lipformer.program.sweep_table import sweep_table
from lipformer.report import write_report
from lipformer.runs import layout, plain_files
from lipformer.runs.folder import recorded
from lipformer.runs.lock import lock_holder, take_lock
from lipformer.runs.outcome import Outcome, read_outcome
from lipformer.runs.record import read_record, read_series
from lipformer.runs.sweep import SweepJob
from lipformer.studies.claims_page import write_claims_page
from lipformer.system.reading import read_regular
from lipformer.training.loggers.wandb_run import earlier_run_id

FILES = (
    layout.CONFIG,
    layout.OVERRIDES,
    layout.STATUS,
    layout.METRICS_CSV,
    layout.METRICS_JSON,
    layout.SAMPLES,
    layout.CERTIFICATE,
    layout.CLAIMS,
)
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
SECONDS = 300


@pytest.fixture(autouse=True)
def no_reader_waits():
    """Ends a reader that waits for a pipe or a device, which would be for ever."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("a reader waits"))
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


# --- what lies where a file is expected --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ODD_FILES)
def test_only_plain_files_are_read(tmp_path, kind):
    ODD_FILES[kind](tmp_path / "x")
    for follow in (False, True):
        with pytest.raises(OSError, match=r"no plain file|larger than|No such|Too many levels|symbolic links"):
            read_regular(tmp_path / "x", 2**20, follow=follow)


@pytest.mark.parametrize("kind", ODD_FILES)
def test_a_run_is_shown_whatever_its_files_are(tmp_path, kind):
    folder = write_run(tmp_path / "run", steps=100, every=10, telemetry=False)
    for name in (*FILES, layout.LOCK):
        (folder / name).unlink(missing_ok=True)
        ODD_FILES[kind](folder / name)
    record = read_record(folder)
    assert (record.config, record.outcome, record.series, record.samples) == ({}, None, {}, None)
    assert lock_holder(folder) is None
    assert "config.yaml cannot be read" in write_report([record], tmp_path / "report.html").read_text()
    (folder / layout.STATUS).rmdir() if kind == "folder" else (folder / layout.STATUS).unlink()
    (folder / layout.STATUS).write_text('{"status": "running", "exit_code": null}')
    assert read_outcome(folder).status == "running"
    with pytest.raises(UsageError, match="is in use by another process: choose another"):
        take_lock(folder)


@pytest.mark.parametrize("kind", ODD_FILES)
def test_a_checkpoint_that_is_no_file(tmp_path, kind):
    (tmp_path / "checkpoints").mkdir()
    for name in ("best.ckpt", "last.ckpt", "previous.ckpt"):
        ODD_FILES[kind](tmp_path / "checkpoints" / name)
    for which in ("best", "last"):
        with pytest.raises(CheckpointError) as error:
            load_run(tmp_path, which=which)
        assert "\n" not in str(error.value)
    ODD_FILES[kind](tmp_path / "model.json")
    ODD_FILES[kind](tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError):
        load_run(tmp_path)


@pytest.mark.parametrize("kind", ODD_FILES)
def test_a_text_that_is_no_file(tmp_path, kind):
    """A checkpoint names the text that it is evaluated on."""
    ODD_FILES[kind](tmp_path / "text.txt")
    with pytest.raises(DataError):
        read_lines(tmp_path / "text.txt", "data.train")


def test_links_that_lead_out_are_not_followed(tmp_path):
    """A page that is made of a folder, and passed on, would hold any file of the reader's."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key.png").write_bytes(b"\x89PNG\r\n\x1a\nhunter2")
    (secret / "text").write_text('{"sentences": ["hunter2"], "status": "hunter2", "reason": "hunter2", "a": "hunter2"}')
    folder = write_run(tmp_path / "run", steps=100, every=10, telemetry=False)
    for name in (*FILES, layout.WANDB_RUN):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(secret / "text")
    (folder / "key.png").symlink_to(secret / "key.png")
    (folder / layout.FIGURES).symlink_to(secret)
    page = write_report([read_record(folder)], tmp_path / "report.html").read_text()
    claims = write_claims_page([("study", folder)], tmp_path / "claims.html").read_text()
    assert "hunter2" not in page + claims
    assert "data:image" not in claims
    assert earlier_run_id(tmp_path / "new", str(folder)) is None


# --- what a file holds -------------------------------------------------------------------------------------------


def laughs(levels: int = 40) -> str:
    """A YAML of some hundred bytes that stands for 10^levels words."""
    lines = ["a0: &a0 [x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


YAML = {
    "aliases": laughs(),
    "merged aliases": "a: &a {b: 1}\nc: {<<: *a}\n",
    "deep": "a: " + "[" * 50_000,
    "deep blocks": "".join(" " * i + "a:\n" for i in range(500)),
    "closed deep": "a: " + "{a: " * 1000 + "1" + "}" * 1000,
    "code": "a: !!python/object/apply:os.system ['touch executed']\n",
    "code of another kind": "a: !!python/name:os.system\n",
    "large": "a: " + "x" * 2**18 + "\n",
    "digits": "a: " + "9" * 100_000 + "\n",
    "no text": b"a: \xff\xfe\n",
    "two documents": "a: 1\n---\nb: 2\n",
}


@pytest.mark.parametrize("kind", YAML)
def test_yaml_that_grows_nests_or_runs(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    content = YAML[kind]
    (tmp_path / "config.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert plain_files.read_config(tmp_path / "config.yaml") == {}
    assert not (tmp_path / "executed").exists()


def test_interpolations_are_text(tmp_path, monkeypatch):
    monkeypatch.setenv("LIPFORMER_SECRET", "hunter2")
    (tmp_path / "config.yaml").write_text("name: ${oc.env:LIPFORMER_SECRET}\nseed: ${name}\n")
    assert plain_files.read_config(tmp_path / "config.yaml")["name"] == "${oc.env:LIPFORMER_SECRET}"
    assert "hunter2" not in write_report([read_record(tmp_path)], tmp_path / "report.html").read_text()


@pytest.mark.parametrize("text", ["[" * 10**6, '{"a":' * 10**6, '"' + "x" * 2**24 + '"'], ids=["[", "{", "large"])
def test_json_that_is_deep_or_large(tmp_path, text):
    (tmp_path / "status.json").write_text(text)
    assert plain_files.read_json(tmp_path / "status.json") is None
    assert read_outcome(tmp_path) is None


def test_a_table_of_many_columns_and_many_rows_takes_no_more_than_its_file(tmp_path):
    """All its cells would be 10^10 numbers."""
    names = [f"x{i}" for i in range(100_000)]
    rows = "".join(f"{i},1\n" for i in range(100_000))
    (tmp_path / "metrics.csv").write_text(",".join(["step", *names]) + "\n" + rows)
    series = read_series(tmp_path / "metrics.csv")
    assert list(series) == ["x0"]
    assert len(series["x0"].values) == 100_000


# --- text that acts ----------------------------------------------------------------------------------------------


def shown(renderable) -> str:
    console = Console(width=400)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def acts(text: str) -> bool:
    return any(character in text for character in "\x1b\x07\x9b\u202e")


def test_the_table_of_a_sweep(tmp_path):
    outcome = Outcome("failed", 1, f"[red]{ESCAPES}<script>")
    table = shown(sweep_table([SweepJob(0, tmp_path / "0", [f"name={ESCAPES}"], outcome)]))
    assert not acts(table)
    assert r"[red]\x1b]0;owned" in table


def test_what_an_evaluation_prints_and_logs(tiny_run, tmp_path, monkeypatch, capsys):
    import torch

    checkpoint = torch.load(tiny_run / "checkpoints" / "best.ckpt", weights_only=True)
    checkpoint["lipformer"]["config"]["name"] = f"<b>{ESCAPES}"
    vocabulary = checkpoint["lipformer"]["vocabulary"]
    checkpoint["lipformer"]["vocabulary"] = ["\x07", "\x1b", *vocabulary[2:-1], "\u202e"]
    torch.save(checkpoint, tmp_path / "x.ckpt")
    (tmp_path / "text.txt").write_text("".join(vocabulary[2:5]) + "\n")
    text = (f"checkpoint={tmp_path / 'x.ckpt'}", f"data.train={tmp_path / 'text.txt'}", "data.unknown=replace")
    monkeypatch.setattr("lipformer.studies.score.sample", lambda *_, **__: [f"a{ESCAPES}"])
    assert evaluate(monkeypatch, *text, "generate.samples=1", f"hydra.run.dir={tmp_path / 'samples'}") == 0
    checkpoint["lipformer"]["config"]["attention"]["_target_"] = f"os.{ESCAPES}"
    torch.save(checkpoint, tmp_path / "y.ckpt")
    bad = f"checkpoint={tmp_path / 'y.ckpt'}"
    assert evaluate(monkeypatch, bad, f"hydra.run.dir={tmp_path / 'refused'}") == 2
    told = capsys.readouterr()
    assert not acts(told.out + told.err)
    assert r"a\x1b]0;owned\x07" in told.out
    assert not acts((tmp_path / "samples" / "evaluate.log").read_text())


def test_lines_of_the_log(tmp_path, capsys):
    with recorded(tmp_path, "train"):
        logging.getLogger("lipformer.x").info("read %s", ESCAPES)
    assert not acts(capsys.readouterr().out)
    assert not acts((tmp_path / "train.log").read_text())


# --- names that lead elsewhere -----------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [(), ("-m",)])
@pytest.mark.parametrize("name", ["a/../../b", "..", "../b", "a/.."])
def test_a_name_does_not_leave_the_folder_of_runs(tmp_path, monkeypatch, capsys, name, flags):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert train(monkeypatch, *flags, f"name={name}", "data.train=x.txt") == 2
    (line,) = capsys.readouterr().err.splitlines()
    remedy = "to write elsewhere, give hydra.run.dir=<folder>"
    assert line == f"error: name={name}: it must be a folder below runs/; {remedy}"
    assert [path.name for path in tmp_path.rglob("*")] == ["here"]


def test_names_below_the_folder_of_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("a/b", "/etc/x", "a..b"):
        assert train(monkeypatch, f"name={name}", "data.train=x.txt", "depth=0") == 2
        assert "depth=0: it must be" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


@pytest.mark.parametrize(
    "note",
    [
        '{"id": "../../x"}',
        '{"id": "/etc/passwd"}',
        '{"id": ""}',
        '{"id": "a b"}',
        '{"id": 5}',
        '{"id": ["a"]}',
        '{"id": "' + "x" * 129 + '"}',
        '{"url": "https://example.org"}',
        '{"id": "abc',
        "[1]",
        "",
        "[" * 10**5,
        '{"id": "abc\\n"}',
    ],
)
def test_a_note_of_wandb_that_names_no_run(tmp_path, caplog, note):
    (tmp_path / layout.WANDB_RUN).write_text(note)
    assert earlier_run_id(tmp_path / "new", str(tmp_path)) is None
    assert "names no run that could be continued: this one begins a new run" in caplog.text


def test_a_note_of_wandb_that_names_one(tmp_path, caplog):
    assert earlier_run_id(tmp_path / "new", None) is None
    assert earlier_run_id(tmp_path / "new", str(tmp_path)) is None
    (tmp_path / layout.WANDB_RUN).write_text('{"id": "a1b2c3d4", "url": "https://example.org/x"}')
    assert earlier_run_id(tmp_path / "new", str(tmp_path)) == "a1b2c3d4"
    assert not caplog.text


def test_a_damaged_checkpoint_beside_a_pipe_is_named(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "best.ckpt").write_bytes(b"PK")
    os.mkfifo(tmp_path / "checkpoints" / "last.ckpt")
    with pytest.raises(CheckpointError, match="no other one is left"):
        find_checkpoint(Path(tmp_path))
