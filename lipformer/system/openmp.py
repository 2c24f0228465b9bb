"""How OpenMP's threads wait for each other, which must be settled before torch loads OpenMP. Imports nothing heavy."""

import os

SPIN_COUNT = "3000"
"""How often a waiting thread looks again before it sleeps. Left alone, GNU OpenMP looks some 300,000 times: beside
other processes a thread then burns its share of the core while the one it waits for is not running. With none at all
(OMP_WAIT_POLICY=passive) each of the many short operations of a small model waits for a wake-up. Measured by
bench/busy.py."""
CHOSEN_BY_USER = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def limit_spinning() -> None:
    """Set GNU OpenMP's spin count for this process and its children, unless the user chose how threads wait."""
    if not any(name in os.environ for name in CHOSEN_BY_USER):
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
