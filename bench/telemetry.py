"""Measure the cost of telemetry: the processor time of the monitor against that of the steps, in the same training.

    python bench/telemetry.py [key=value ...]    # keys as of train.py; STEPS=1500 REPEATS=3 in the environment

Prints both and their ratio for each training (one thread, the validations counted as steps), then the median. Two
trainings, one with and one without, differ by more than the cost on a machine with other work; within one training both
suffer alike.
"""

import os
import statistics
import sys
import tempfile
import time
from functools import wraps
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir

from lipformer.config import conf_dir, register, to_plain, validate
from lipformer.runs.outcome import Outcome
from lipformer.training.callbacks.stability import StabilityMonitor
from lipformer.training.run import run_training

STEPS, REPEATS = (int(os.environ.get(name, default)) for name, default in (("STEPS", 1500), ("REPEATS", 3)))
FIXED = (
    "trainer=cpu",
    "trainer.threads=1",
    f"trainer.max_steps={STEPS}",
    "trainer.progress=none",
    "trainer.report=false",
    "data.batch_tokens=1024",
    "~callbacks.samples",  # they are generated once, at the end, however long the training is
)
HOOKS = ("on_before_optimizer_step", "on_train_batch_end")


def count(seconds: list[float]) -> None:
    """Let the monitor's hooks add their processor time to `seconds`."""

    def counted(hook):
        @wraps(hook)
        def wrapper(*arguments):
            started = time.process_time()
            hook(*arguments)
            seconds[0] += time.process_time() - started

        return wrapper

    for name in HOOKS:
        setattr(StabilityMonitor, name, counted(getattr(StabilityMonitor, name)))


def train(overrides: list[str]) -> float:
    """Return processor seconds of a training."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("train", [*FIXED, *overrides])
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        run_training(validate(config), to_plain(config), Path(folder), Outcome())
        return time.process_time() - started


def main() -> None:
    register()
    torch.set_num_threads(1)
    seconds, overrides, shares = [0.0], sys.argv[1:], []
    count(seconds)
    train([*overrides, "trainer.max_steps=2"])  # imports and first calls
    for repeat in range(REPEATS):
        seconds[0] = 0.0
        total = train(overrides)
        shares.append(seconds[0] / (total - seconds[0]))
        print(
            f"{repeat + 1}: monitor {seconds[0]:.1f} s, all else {total - seconds[0]:.1f} s, {shares[-1]:.2%}",
            flush=True,
        )
    print(
        f"{STEPS} steps, {' '.join(overrides) or 'defaults'}: median {statistics.median(shares):.2%}, range "
        f"{min(shares):.2%} to {max(shares):.2%}"
    )


if __name__ == "__main__":
    main()
