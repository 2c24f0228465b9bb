"""Which of the processes that train together this one is, by the environment that its launcher has set.

It is known before torch and Lightning are imported, as the run folder belongs to one process from the start.
"""

import os

RANK, LOCAL_RANK, WORLD_SIZE = "RANK", "LOCAL_RANK", "WORLD_SIZE"


def rank() -> int:
    """Return the number of this process among those that train together, on all machines; 0 if it trains alone.

    The first one alone writes the run folder, apart from the logs of the others. ``torchrun`` sets RANK. Lightning
    starts the other processes of one machine itself, by the command line of the first, with LOCAL_RANK alone.
    """
    return int(os.environ.get(RANK, os.environ.get(LOCAL_RANK, "0")))


def started_from_outside() -> bool:
    """Return whether a launcher such as ``torchrun`` has started all processes, and not Lightning the others."""
    return RANK in os.environ and os.environ.get(WORLD_SIZE, "1") != "1"
