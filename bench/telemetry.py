"""What watching costs: the same training with callbacks=stability and callbacks=none, in alternating pairs.

    python bench/telemetry.py [key=value ...]       # keys as of train.py; PAIRS=3 STEPS=500 in the environment

Prints the seconds of processor time of each training (one thread, with its one validation), the ratio of each pair, and
their median. Processor time, since other work on the machine lengthens wall time.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir

from lipformer.config import conf_dir, register, to_plain, validate
from lipformer.run_folder import Outcome
from lipformer.training.run import run_training

PAIRS, STEPS = (int(os.environ.get(name, default)) for name, default in (("PAIRS", 3), ("STEPS", 500)))
FIXED = (
    "trainer=cpu",
    "trainer.threads=1",
    f"trainer.max_steps={STEPS}",
    f"trainer.val_every_steps={STEPS}",
    "trainer.progress=none",
    "trainer.report=false",
    "data.batch_tokens=1024",
)


def train(callbacks: str, overrides: list[str]) -> tuple[float, float]:
    """Return processor seconds of a training, and those that the monitor counted itself."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("train", [*FIXED, f"callbacks={callbacks}", *overrides])
    if callbacks != "none":
        del config.callbacks.samples  # once at the end, whatever the length of a training
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        run_training(validate(config), to_plain(config), Path(folder), Outcome())
        seconds = time.process_time() - started
        figures = (Path(folder) / "metrics.json").read_text()
    counted = figures.partition('"stability/seconds": ')[2].partition(",")[0]
    return seconds, float(counted or "nan")


def main() -> None:
    register()
    torch.set_num_threads(1)
    overrides = sys.argv[1:]
    train("stability", ["trainer.max_steps=2", *overrides])  # imports and first calls
    ratios = []
    for pair in range(PAIRS):
        order = ("none", "stability") if pair % 2 == 0 else ("stability", "none")
        seconds = {callbacks: train(callbacks, overrides) for callbacks in order}
        ratios.append(seconds["stability"][0] / seconds["none"][0])
        print(
            f"pair {pair + 1}: without {seconds['none'][0]:.1f} s, with {seconds['stability'][0]:.1f} s, ratio "
            f"{ratios[-1]:.4f}; the monitor's own count {seconds['stability'][1]:.1f} s of wall time",
            flush=True,
        )
    print(
        f"{STEPS} steps, {' '.join(overrides) or 'defaults'}: median ratio {statistics.median(ratios):.4f}, "
        f"range {min(ratios):.4f} to {max(ratios):.4f}"
    )


if __name__ == "__main__":
    main()
