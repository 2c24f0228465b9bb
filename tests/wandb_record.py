"""What an offline wandb run has on disk: the records that `wandb sync` would upload."""

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HEADER, BLOCK, CHUNK_HEADER = 7, 32768, 7  # bytes: of the file, of a block and of a chunk of LevelDB's log format
WHOLE, LAST = 1, 4


@dataclass
class Recorded:
    """One run as its file tells it; of the machine's metrics the names."""

    id: str = ""
    name: str = ""
    group: str = ""
    job_type: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None


def read_runs(run_folder: Path, seconds: float = 60) -> list[Recorded]:
    """Read every offline run in ``<run_folder>/wandb``, once it is whole.

    wandb's own process closes the file a moment after `finish` has returned.
    """
    deadline = time.monotonic() + seconds
    files = sorted(run_folder.glob("wandb/offline-run-*/*.wandb"))
    runs = [_read(file) for file in files]
    while any(run.exit_code is None for run in runs) and time.monotonic() < deadline:
        time.sleep(0.1)
        runs = [_read(file) for file in files]
    return runs


def _read(file: Path) -> Recorded:
    from wandb.proto.wandb_internal_pb2 import Record

    run = Recorded()
    for payload in _payloads(file.read_bytes()):
        record = Record.FromString(payload)
        match record.WhichOneof("record_type"):
            case "run":
                run.id, run.name, run.group = record.run.run_id, record.run.display_name, record.run.run_group
                run.job_type, run.tags = record.run.job_type, list(record.run.tags)
                run.config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            case "history":
                run.history.append(_values(record.history.item))
            case "summary":
                run.summary |= _values(record.summary.update)
            case "metric":
                run.metrics[record.metric.name or record.metric.glob_name] = record.metric
            case "exit":
                run.exit_code = record.exit.exit_code
    return run


def _values(items: Any) -> dict[str, Any]:
    return {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def _payloads(data: bytes) -> Iterator[bytes]:
    at, payload = HEADER, b""
    while at + CHUNK_HEADER <= len(data):
        if BLOCK - at % BLOCK < CHUNK_HEADER:  # too little left of the block for a chunk: padding
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        payload += data[at + CHUNK_HEADER : at + CHUNK_HEADER + size]
        at += CHUNK_HEADER + size
        if kind in (WHOLE, LAST):
            yield payload
            payload = b""
