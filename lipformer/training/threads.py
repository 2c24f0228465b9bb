"""Choosing the number of CPU threads of a training."""

import os

import torch

from lipformer.system.openmp import CORES

DEFAULT = torch.get_num_threads()  # read before a job changes it, since the jobs of a sweep share the process
SMALL = 100_000
"""Size of a batch's features (tokens times width) below which one thread is used. Beside other processes a second
thread then costs more than it gains, since each of many short operations waits for the slower thread (docs/results.md,
measured by bench/busy.py)."""


def choose_threads(
    asked: int | None, *, width: int, batch_tokens: int, processes: int = 1, num_workers: int = 0
) -> int:
    """Return the number of threads to train with.

    Args:
        asked: ``trainer.threads``, which is returned unless it is None.
        width: features of a token, D.
        batch_tokens: tokens of a batch, of this process's share of it.
        processes: how many train together on this machine.
        num_workers: processes that prepare batches, of each of these.

    Returns:
        1 for a small model (`SMALL`). If the user has set OMP_NUM_THREADS, torch's own number, which is then that one.
        For a larger model otherwise, this process's share of torch's own number, which is one for each core; a job
        that has a share of the cores (`CORES`) leaves of it what its workers need.
    """
    if asked is not None:
        return asked
    shared = CORES in os.environ  # and OMP_NUM_THREADS says so to torch; the user has not chosen
    if "OMP_NUM_THREADS" in os.environ and not shared:
        return DEFAULT
    if width * batch_tokens < SMALL:
        return 1
    return max(1, DEFAULT // processes - (num_workers if shared else 0))
