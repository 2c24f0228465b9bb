"""Kill processes while they save checkpoints, and count the checkpoints that are lost, as a Markdown table.

    python bench/kills.py [--kills 20 --folder /dev/shm --megabytes 16 --seed 0]

A process saves one checkpoint after another and is killed (SIGKILL) at a random moment. This is repeated until
`--kills` kills came during a save. After each kill, the last checkpoint of the folder, or the one before it if the last
is missing or truncated, must be complete, and must be the last one that was saved or the one that was being saved.
`--folder` should be on another file system than the temporary folder, as on a cluster: Lightning's own way of saving
(the second row) writes to the temporary folder and moves the file.
"""

import argparse
import os
import random
import signal
import tempfile
import time
from pathlib import Path

import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO

from lipformer.assembly.checkpoint import find_checkpoint
from lipformer.errors import CheckpointError
from lipformer.runs.layout import LAST
from lipformer.training.checkpoint_io import AtomicCheckpointIO


def save_for_ever(io: TorchCheckpointIO, folder: Path, numbers: int, told: int) -> None:
    """Save checkpoints of `numbers` float32 numbers without end; write "(" to `told` before each and ")" after it."""
    for step in range(1, 10**6):
        weights = torch.full((numbers,), float(step))
        os.write(told, b"(")
        io.save_checkpoint({"global_step": step, "weights": weights}, folder / "checkpoints" / LAST)
        os.write(told, b")")


def kill_one(io: TorchCheckpointIO, folder: Path, numbers: int, delay: float) -> tuple[int, bool]:
    """Start a process that saves, and kill it; return how many checkpoints it saved, and whether a save was cut off."""
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            save_for_ever(io, folder, numbers, write)
        finally:
            os._exit(1)
    os.close(write)
    told = os.read(read, 2)
    while told.count(b")") < 1:  # wait until the first checkpoint is saved
        told += os.read(read, 1)
    time.sleep(delay)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    while more := os.read(read, 10_000):
        told += more
    os.close(read)
    return told.count(b")"), told.endswith(b"(")


def left(folder: Path) -> int | None:
    """Return the step of the checkpoint that a killed run continues from; None if no checkpoint is complete."""
    try:
        checkpoint = torch.load(find_checkpoint(folder, "last"), weights_only=True)
    except (CheckpointError, RuntimeError, EOFError):
        return None
    whole = bool((checkpoint["weights"] == checkpoint["global_step"]).all())
    return checkpoint["global_step"] if whole else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--megabytes", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
    staged = tempfile.TemporaryDirectory()
    tempfile.tempdir = staged.name  # where Lightning's way of saving leaves its unfinished files
    print("| saved by | kills | while saving | no checkpoint left | an older one than the last two |")
    print("|---|---|---|---|---|")
    for io in (AtomicCheckpointIO(), TorchCheckpointIO()):
        chance = random.Random(options.seed)
        kills, saving, lost, old = 0, 0, 0, 0
        while saving < options.kills:
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                saved, within = kill_one(io, Path(folder), options.megabytes * 2**18, chance.uniform(0, 0.5))
                step = left(Path(folder))
            kills += 1
            saving += within
            lost += step is None
            old += step is not None and step < saved
        print(f"| `{type(io).__name__}` | {kills} | {saving} | {lost} | {old} |")


if __name__ == "__main__":
    main()
