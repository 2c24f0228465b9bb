"""Choosing the number of CPU threads of a training."""

import os

import torch

DEFAULT = torch.get_num_threads()  # read before a job changes it, since the jobs of a sweep share the process
SMALL = 100_000
"""Size of a batch's features (tokens times width) below which one thread is used. Beside other processes a second
thread then costs more than it gains, since each of many short operations waits for the slower thread (docs/results.md,
measured by bench/busy.py)."""


def choose_threads(asked: int | None, *, width: int, batch_tokens: int, processes: int = 1) -> int:
    """Return the number of threads to train with.

    Args:
        asked: ``trainer.threads``, which is returned unless it is None.
        width: features of a token, D.
        batch_tokens: tokens of a batch, of this process's share of it.
        processes: how many train together on this machine.

    Returns:
        1 for a small model (`SMALL`). If the user has set OMP_NUM_THREADS, torch's own number, which is then that one.
        For a larger model otherwise, this process's share of torch's own number, which is one for each core.
    """
    if asked is not None:
        return asked
    if "OMP_NUM_THREADS" in os.environ:
        return DEFAULT
    return 1 if width * batch_tokens < SMALL else max(1, DEFAULT // processes)
