"""Runs in processes of their own that a fault strikes, and what is left of them compared with an uninterrupted run."""

import atexit
import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from faulty_train import FAULT, TOLD
from programs import ROOT, arguments_of

from lipformer.assembly.checkpoint import find_checkpoint, read_checkpoint
from lipformer.errors import CheckpointError
from lipformer.runs.metric_names import SECONDS, TELEMETRY_SECONDS, TOKENS_PER_SECOND
from lipformer.runs.metrics_csv import read_rows
from lipformer.runs.outcome import read_outcome

SEED = 20261201
"""Of all random moments."""
STEPS = 12
RUN = (
    "dropout=0.2",
    f"trainer.max_steps={STEPS}",
    "trainer.val_every_steps=3",
    "data.batch_tokens=512",
    "schedule.warmup_steps=4",
)
"""A run of two epochs, with a validation every three steps, in which dropout, optimizer and schedule have a state."""
PHASES = ("start-up", "step", "validation", "saving", "finishing")
TIMED = {SECONDS, TOKENS_PER_SECOND, TELEMETRY_SECONDS}
"""Metrics that no two runs have in common."""


@dataclass
class Faulty:
    """A run of tests/faulty_train.py.

    Attributes:
        pid: its process id.
        code: its exit code.
        lines: what it told, in order, each with the seconds since its start at which it was read.
        output: what it printed.
        errors: what it printed to stderr.
    """

    pid: int
    code: int
    lines: list[tuple[str, float]]
    output: str
    errors: str


@functools.cache
def _server() -> subprocess.Popen:
    """The process of tests/faulty_train.py that forks the runs of these tests."""
    command = [sys.executable, str(ROOT / "tests" / "faulty_train.py")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(server.kill)
    return server


def run_faulty(
    *arguments: object,
    folder: Path,
    fault: str = "",
    kill_after: int | None = None,
    wait: float = 0.0,
    **environment: str,
) -> Faulty:
    """Run train.py with a fault, in a process of its own.

    Args:
        arguments: of train.py, besides those of a tiny run.
        folder: the working directory.
        fault: as in the environment variable ``FAULT``.
        kill_after: number of lines after which the process is killed; None to let it end.
        wait: seconds from that line to the kill.
        environment: further variables.
    """
    server, pipe = _server(), folder / "told"
    os.mkfifo(pipe)
    asked = {
        "arguments": arguments_of(arguments),
        "folder": str(folder),
        "environment": {TOLD: str(pipe), FAULT: fault, **environment},
    }
    assert server.stdin is not None
    assert server.stdout is not None
    print(json.dumps(asked), file=server.stdin, flush=True)
    process = int(server.stdout.readline())
    started, lines = time.monotonic(), []
    with pipe.open(encoding="utf-8") as told:  # it ends with the process
        for line in told:
            lines.append((line.strip(), time.monotonic() - started))
            if len(lines) == kill_after:
                time.sleep(wait)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
    code = int(server.stdout.readline())
    pipe.unlink()
    return Faulty(process, code, lines, (folder / "stdout").read_text(), (folder / "stderr").read_text())


def random_moment(lines: Sequence[tuple[str, float]], phase: str, chance: random.Random) -> tuple[int, float]:
    """Return a random moment of a phase, by what a whole run told: a number of lines, and seconds after the last."""
    at = chance.choice([i for i, (line, _) in enumerate(lines) if line.startswith(phase)])
    lasts = lines[at + 1][1] - lines[at][1] if at + 1 < len(lines) else 0.05
    return at + 1, chance.uniform(0, lasts)


def has_checkpoint(folder: Path) -> bool:
    """Return whether a run has left a checkpoint to be continued from."""
    try:
        return bool(find_checkpoint(folder, "last"))
    except CheckpointError:
        return False


def train_on(folder: Path, *arguments: object, by: Path) -> Faulty:
    """Run train.py without a fault in another process, into `folder`."""
    return run_faulty(*arguments, f"hydra.run.dir={folder}", folder=by)


def assert_equal_runs(one: Path, two: Path) -> None:
    """Assert that a run ended as another one did: checkpoints bit for bit, all rows and figures, and its status."""
    for name in ("last.ckpt", "best.ckpt"):
        first, second = (read_checkpoint(folder / "checkpoints" / name) for folder in (one, two))
        assert first["global_step"] == second["global_step"], name
        assert_equal_tensors(first["state_dict"], second["state_dict"])
        for index, state in first["optimizer_states"][0]["state"].items():
            assert_equal_tensors(state, second["optimizer_states"][0]["state"][index])
        assert first["lr_schedulers"] == second["lr_schedulers"], name
    rows, others = (read_rows(folder / "metrics.csv") for folder in (one, two))
    assert rows == others
    figures, further = (json.loads((folder / "metrics.json").read_text()) for folder in (one, two))
    assert {k: v for k, v in figures.items() if k not in TIMED} == {k: v for k, v in further.items() if k not in TIMED}
    outcomes = [read_outcome(folder) for folder in (one, two)]
    assert outcomes[0] == outcomes[1]
    assert outcomes[1].status == "finished"
    assert not [path.name for path in two.rglob(".*.part")]
    assert not (two / "run.lock").exists()


def assert_equal_tensors(one: dict, two: dict) -> None:
    """Assert that two dictionaries hold equal tensors, and equal values besides."""
    assert one.keys() == two.keys()
    for name, value in one.items():
        same = torch.equal(value, two[name]) if isinstance(value, torch.Tensor) else value == two[name]
        assert same, name
