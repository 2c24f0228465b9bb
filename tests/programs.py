"""train.py on a tiny text and model: in this process, or in another to send signals to."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from lipformer.program import cli

ROOT = Path(__file__).parents[1]
TINY = (
    "data=text_files",
    "attention=dot_product",
    "depth=1",
    "width=16",
    "heads=2",
    "context=64",
    "trainer=cpu",
    "trainer.threads=1",
    "trainer.max_steps=3",
    "trainer.val_every_steps=3",
    "trainer.log_every_steps=1",
    "callbacks=none",
    "trainer.report=false",
)


def write_text(path: Path, lines: int = 100) -> Path:
    """Write lines of a few English words each."""
    words = ("the", "cat", "and", "a", "dog", "sat", "on", "some", "mat", "then", "ran", "over", "hills")
    chance = random.Random(0)
    path.write_text("".join(" ".join(chance.choices(words, k=chance.randint(3, 9))) + "\n" for _ in range(lines)))
    return path


def arguments_of(arguments: Sequence[object]) -> list[str]:
    """Return `arguments` of train.py, Hydra's flags first, with those of a tiny run unless they continue one."""
    resumes = any(str(argument).startswith(("resume=", "sweep.resume=")) for argument in arguments)
    other = any(str(argument).startswith("model=") for argument in arguments)  # which may have no attention
    tiny = [argument for argument in TINY if not (other and argument.startswith("attention="))]
    typed = [*([] if resumes else tiny), *map(str, arguments)]  # a continued run is as large as it was
    return sorted(typed, key=lambda argument: not argument.startswith("-"))  # Hydra wants its flags first


def train(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Run train.py with `TINY` and `arguments` in this process; return its exit code."""
    monkeypatch.setenv(cli.FULL_ERROR, "0")  # the program sets it, and pytest is to put it back
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments_of(arguments)])
    with pytest.raises(SystemExit) as exit_:
        cli.train()
    return exit_.value.code


def evaluate(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Run evaluate.py with `arguments` in this process; return its exit code."""
    monkeypatch.setenv(cli.FULL_ERROR, "0")
    monkeypatch.setattr(sys, "argv", ["evaluate.py", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_:
        cli.evaluate()
    return exit_.value.code


def start_train(
    *arguments: object, folder: Path, program: tuple[str, ...] = (str(ROOT / "train.py"),), **environment: str
) -> subprocess.Popen:
    """Start train.py, or what `program` has in its place, with `TINY` and `arguments` in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, *program, *arguments_of(arguments)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def start_sweep(folder: Path, launcher: str, *arguments: object, **environment: str) -> subprocess.Popen:
    """Start a sweep of train.py on a text in `folder`, as `start_train` does."""
    text = folder / "text"
    if not text.exists():
        write_text(text)
    typed = ("-m", f"data.train={text}", f"hydra/launcher={launcher}", *arguments)
    return start_train(*typed, folder=folder, **environment)


def wait_for(path: Path, process: subprocess.Popen, seconds: float = 120) -> None:
    """Wait until `process` has made `path`."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.05)


WATCHED = (
    "callbacks=stability",
    "callbacks.stability.every_n_steps=2",
    "callbacks.stability.expensive_every_n_steps=4",
)
"""Options of a run that telemetry measures often."""


def weights_of(folder: Path, which: str = "last"):
    """Return the weights in a checkpoint of a run folder."""
    import torch  # after `cli`, which sets how OpenMP's threads wait

    return torch.load(folder / "checkpoints" / f"{which}.ckpt", weights_only=True)["state_dict"]
