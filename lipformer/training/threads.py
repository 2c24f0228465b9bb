"""How many CPU threads a training uses."""

import os

import torch

DEFAULT = torch.get_num_threads()  # before a job changes it: the next job of a sweep shares the process
SMALL = 100_000
"""Numbers in the features of a batch (tokens times width) below which a second thread is worth less than it costs
beside other processes, since each of many short operations waits for the slower thread (docs/results.md, measured by
bench/busy.py)."""


def choose_threads(asked: int | None, *, width: int, batch_tokens: int) -> int:
    """Return the number of threads to train with.

    Args:
        asked: ``trainer.threads``; it is taken as it is unless it is None.
        width: features of a token, D.
        batch_tokens: tokens of a batch.

    Returns:
        One for a small model (`SMALL`); else, and where the user set OMP_NUM_THREADS, as many as torch chooses, which
        is one for each core.
    """
    if asked is not None:
        return asked
    return 1 if width * batch_tokens < SMALL and "OMP_NUM_THREADS" not in os.environ else DEFAULT
