"""The machine that runs the process."""

import os
import platform
import re
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def operating_system() -> str:
    """Return the system, its release and the architecture."""
    return f"{platform.system()} {platform.release()} {platform.machine()}"


def cpu_model() -> str:
    """Return the name of the processor as the system tells it; empty if it does not."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", CPUINFO.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor()


def core_count() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
