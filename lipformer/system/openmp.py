"""How many threads OpenMP has, and how they wait; set before torch loads OpenMP, so that nothing heavy is imported."""

import os

SPIN_COUNT = "3000"
"""How often a waiting thread checks again before it sleeps.

By default GNU OpenMP checks some 300,000 times: beside other processes a thread then uses up its share of the core
while the thread it waits for is not running. If threads sleep at once (OMP_WAIT_POLICY=passive), each of the many short
operations of a small model waits for a wake-up. Measured by bench/busy.py.
"""
CHOSEN_BY_USER = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def limit_spinning() -> None:
    """Set GNU OpenMP's spin count for this process and its children, unless the user has set how threads wait."""
    if not any(name in os.environ for name in CHOSEN_BY_USER):
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT


CORES = "LIPFORMER_CORES"
"""Environment variable of a job that has its share of the cores: how many."""


def core_count() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_cores(cores: int) -> dict[str, str]:
    """Return the environment variables of a job that has its share of the cores, or of one as the user has set it.

    Args:
        cores: the share.
    """
    asked = os.environ.get("OMP_NUM_THREADS")
    return {"OMP_NUM_THREADS": asked} if asked else {"OMP_NUM_THREADS": str(cores), CORES: str(cores)}
