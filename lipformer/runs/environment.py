"""What a run ran in, as far as its numbers may depend on it: ``environment.json``.

It holds no environment variables but those named in `lipformer.training.environment`, no name of a user or a host, and
no path but those that were typed.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lipformer.runs import layout
from lipformer.runs.plain_files import read_json
from lipformer.system.atomic import replace_text
from lipformer.system.ranks import rank


@dataclass(frozen=True)
class Environment:
    """What one process ran in.

    Attributes:
        started: when it began, ISO 8601 with the offset from UTC.
        command: the command line as it was typed, in a sweep that of the job alone; None if it was started from Python.
        seed: the seed of the run; None if nothing is random.
        versions: package -> version; ``cuda`` and ``cudnn`` if torch has them.
        commits: of the checkouts of the code and of the working directory, with ``-dirty`` if files differ; None if it
            is none or, of the working directory, the same.
        machine: system, processor, what torch makes of it, number of cores that may be used, and GPUs.
        threads: numbers of torch's threads, and the variables that set how BLAS and OpenMP compute.
        determinism: torch's flags.
        corpus: split -> its `lipformer.data.fingerprint.Fingerprint` as plain containers, of the splits that were read.
    """

    started: str
    command: str | None
    seed: int | None
    versions: dict[str, Any]
    commits: dict[str, Any]
    machine: dict[str, Any]
    threads: dict[str, Any]
    determinism: dict[str, Any]
    corpus: dict[str, Any]


def add_environment(folder: Path, environment: Environment) -> None:
    """Add the environment of this process to ``environment.json``; those of processes before it are kept.

    Raises:
        WriteError: the file cannot be written.
    """
    if rank() == 0:
        file = folder / layout.ENVIRONMENT
        before = read_json(file)
        entries = [*(before if isinstance(before, list) else []), asdict(environment)]
        replace_text(file, json.dumps(entries, indent=2, ensure_ascii=False) + "\n", errors="replace")


def read_environments(folder: Path) -> list[Environment]:
    """Return the environments of a run, the last one last; empty without the file; broken entries are left out."""
    told = read_json(folder / layout.ENVIRONMENT)
    return [Environment(**entry) for entry in told if _is_whole(entry)] if isinstance(told, list) else []


def _is_whole(entry: Any) -> bool:
    """Return whether an entry has the fields of an `Environment`, and no others, with their types."""
    kinds = {"started": str, "command": str | None, "seed": int | None}
    fields = list(Environment.__annotations__)
    return (
        isinstance(entry, dict)
        and entry.keys() == set(fields)
        and all(isinstance(entry[name], kinds.get(name, dict)) for name in fields)
    )
