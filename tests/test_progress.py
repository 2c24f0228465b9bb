"""What a training shows in the terminal: the bar, plain lines, or nothing."""

import io
import json
import logging
import math
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from programs import ROOT, TINY, train, write_text
from rich.cells import cell_len
from rich.console import Console
from trainers import clock_by_hand, trainer  # noqa: F401

from lipformer.errors import DivergedError
from lipformer.tasks import LANGUAGE
from lipformer.training.callbacks.progress import (
    PlainLines,
    RichBar,
    TrainingProgress,
    describe_progress,
    fitting,
    progress_callbacks,
)
from lipformer.training.callbacks.throughput import Throughput
from lipformer.training.language import LanguageModule

VALUES = ["train 3.004 nats", "valid 3.014 nats", "4.348 bits", "gradient 0.104", "entropy 63%"]


def screen(width):
    return Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)


def plain(console):
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())


def test_values_come_from_the_metrics_and_from_whoever_has_them():
    state = trainer()
    assert describe_progress(state, LANGUAGE) == []
    state = trainer(**{"train/nats_per_char": 3.0041, "train/gradient_norm": 0.25})
    assert describe_progress(state, LANGUAGE) == [
        "train 3.004 nats",
        f"{LANGUAGE.derived[0].of(3.0041):.3f} bits",
        "gradient 0.25",
    ]
    state.callback_metrics["val/nats_per_char"] = torch.tensor(3.0137)
    state.callbacks = [
        object(),
        SimpleNamespace(latest={"stability/total/gradient_norm": 0.1038, "stability/total/entropy_share": 0.631}),
    ]
    assert describe_progress(state, LANGUAGE) == VALUES
    state.callbacks[1].latest = {"stability/total/gradient_norm": math.inf, "stability/total/entropy_share": math.nan}
    assert describe_progress(state, LANGUAGE)[3:] == ["gradient inf", "entropy nan%"]


@pytest.mark.parametrize("other", [None, 3.0, "best.ckpt", [("stability/total/gradient_norm", 9.0)], lambda: {}])
def test_what_a_users_callback_calls_latest_may_be_anything(other):
    state = trainer(**{"train/gradient_norm": 0.25})
    state.callbacks = [SimpleNamespace(latest=other)]
    assert describe_progress(state, LANGUAGE) == ["gradient 0.25"]


def test_a_line_drops_the_least_important_values():
    assert fitting(VALUES, 200) == "train 3.004 nats  valid 3.014 nats  4.348 bits  gradient 0.104  entropy 63%"
    assert fitting(VALUES, 75) == fitting(VALUES, 200)
    assert fitting(VALUES, 74) == "train 3.004 nats  valid 3.014 nats  4.348 bits  gradient 0.104"
    assert fitting(VALUES, 46) == "train 3.004 nats  valid 3.014 nats  4.348 bits"
    assert fitting(VALUES, 45) == "train 3.004 nats  valid 3.014 nats"
    assert fitting(VALUES, 10) == ""


@pytest.mark.parametrize("width", [30, 44, 60, 80, 120])
def test_no_width_wraps_the_bar(width):
    console = screen(width)
    bar = TrainingProgress(console)
    rate, left = "12,068 tokens/s", "10:12:34 left"
    bar.update(bar.training, total=50000, completed=12345, rate=rate, left=left)
    bar.update(bar.validation, total=40, completed=7, visible=True)
    bar.line.values = VALUES
    console.print(bar.get_renderable())
    lines = plain(console).splitlines()
    assert len(lines) == 3, "training, validation, values"
    assert all(cell_len(line) <= width for line in lines)
    assert left in lines[0]
    assert (rate in lines[0]) == (width >= 60)
    assert ("7/40" in lines[1]) == (width > 30)
    assert lines[2] == fitting(VALUES, width)
    assert ("12345/50000" in lines[0]) == (width > 30)


def test_the_bar_starts_where_a_resumed_run_does_and_keeps_log_lines_apart(now, monkeypatch):
    console = screen(80)
    bar, state, module = RichBar(Throughput(), console), trainer(step=10), SimpleNamespace(tokens_seen=0)
    module.task = LANGUAGE
    handler = logging.StreamHandler(sys.stdout)
    before = handler.stream
    logging.getLogger().addHandler(handler)
    try:
        bar.on_train_start(state, module)
        state.callback_metrics["train/nats_per_char"] = torch.tensor(1.5)
        bar.on_train_batch_end(state, module)
        logging.getLogger("lipformer").warning("a line of the log")
        bar.on_validation_start(state, module)
        bar.on_validation_batch_end(state, module)
        bar.on_validation_end(state, module)
        state.global_step = 20
        bar.on_train_batch_end(state, module)  # in the same tenth of a second: the values wait
        bar.on_train_end(state, module)
        bar.teardown(state, module, "fit")
    finally:
        logging.getLogger().removeHandler(handler)
    lines = [line.strip() for line in plain(console).replace("\r", "\n").splitlines()]
    assert lines.index("a line of the log") > 0
    assert any(line.startswith("step 10/20") for line in lines)
    assert lines[-2].startswith("step 20/20")
    assert lines[-1] == f"train 1.500 nats  {LANGUAGE.derived[0].of(1.5):.3f} bits"
    assert handler.stream is before


def test_an_error_ends_the_bar(tmp_path, monkeypatch, capsys):
    def training_step(self, batch, batch_idx):
        assert sys.stdout is not before, "the bar is on"
        raise DivergedError("[red]gone[/] wrong")

    monkeypatch.setattr(LanguageModule, "training_step", training_step)
    monkeypatch.setenv("FORCE_COLOR", "1")  # for Rich a sign of a terminal
    before = sys.stdout
    text = write_text(tmp_path / "text.txt")
    options = ("trainer.progress=rich", "callbacks=none", f"data.train={text}", f"hydra.run.dir={tmp_path / 'run'}")
    assert train(monkeypatch, *options) == 3
    assert sys.stdout is before
    assert capsys.readouterr().err.startswith("error: [red]gone[/] wrong")


def test_other_ranks_show_nothing(capsys):
    state, module = trainer(), SimpleNamespace(tokens_seen=0)
    state.is_global_zero = False
    bar = RichBar(Throughput())
    bar.on_train_start(state, module)
    bar.on_train_batch_end(state, module)
    bar.on_validation_end(state, module)
    bar.teardown(state, module, "fit")
    assert capsys.readouterr() == ("", "")


def test_a_terminal_that_cannot_redraw_gets_lines(monkeypatch):
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: True, write=len, flush=lambda: None))
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(progress_callbacks("auto")[1][-1], RichBar)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(progress_callbacks("auto")[1][-1], PlainLines)


def test_plain_lines_are_one_for_each_validation(tmp_path, monkeypatch, capsys):
    text = write_text(tmp_path / "text.txt")
    options = (f"data.train={text}", "trainer.max_steps=5", f"hydra.run.dir={tmp_path / 'run'}")
    assert train(monkeypatch, *options) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    shape = (
        r"step {}/5  train \d\.\d{{3}} nats  valid \d\.\d{{3}} nats  \d\.\d{{3}} bits  gradient [\d.e+-]+"
        r"(  entropy \d+%)?  [\d,]+ tokens/s  \d:\d\d:\d\d left"
    )
    assert len(lines) == 2
    for line, step in zip(lines, (3, 5), strict=True):
        assert re.fullmatch(shape.format(step), line), line
    nats = json.loads((tmp_path / "run" / "metrics.json").read_text())["val/nats_per_char"]
    assert f"valid {nats:.3f} nats  {LANGUAGE.derived[0].of(nats):.3f} bits" in lines[1]


def test_none_shows_nothing_but_errors(tmp_path, monkeypatch, capsys):
    text = write_text(tmp_path / "text.txt")
    options = (f"data.train={text}", "trainer.progress=none", f"hydra.run.dir={tmp_path / 'run'}")
    assert train(monkeypatch, *options) == 0
    out, err = capsys.readouterr()
    assert "tokens/s" not in out
    assert "step " not in out
    assert err == ""
    assert train(monkeypatch, *options) == 2
    assert capsys.readouterr().err.startswith("error: the run folder")


@pytest.mark.skipif(sys.platform == "win32", reason="has no pseudo-terminals")
def test_in_a_terminal_there_is_a_bar(tmp_path):
    import pty
    import termios

    text, width = write_text(tmp_path / "text.txt"), 60
    options = [*TINY, f"data.train={text}", "trainer.max_steps=4", f"hydra.run.dir={tmp_path / 'run'}"]
    unset = ("COLUMNS", "LINES", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, width))
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *options],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=tmp_path,
        env={**environment, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    os.close(theirs)
    output = b""
    try:
        while chunk := _read(ours):
            output += chunk
        status = process.wait(timeout=60)
    finally:
        process.kill()
        os.close(ours)
    written = re.split(r"[\r\n]+|\x1b\[1A|\x1b\[2K", output.decode())  # up a line, and erase it: what Rich draws by
    lines = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line) for line in written]
    assert status == 0, lines
    bars = [line for line in lines if re.match(r"(step|valid) +\d+/\d+ ", line)]
    assert bars[-1].startswith("step 4/4 ")
    assert bars[-1].rstrip().endswith("tokens/s 0:00:00 left")
    values = [line for line in lines if line.startswith("train ")]
    assert re.fullmatch(r"train \d\.\d{3} nats  valid \d\.\d{3} nats  \d\.\d{3} bits", values[-1])
    assert all(cell_len(line) <= width for line in bars + values)
    assert not [line for line in lines if re.match(r"step \d+/4  train", line)], "no plain lines beside the bar"


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux's end of file, once the program has left
        return b""
