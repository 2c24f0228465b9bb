"""Unfinished files that a killed process left in a run folder go when the folder is taken over."""

import json
from dataclasses import asdict, replace

from lipformer.runs.lock import take_lock, this_process


def test_parts_of_a_dead_process_go_with_its_lock(tmp_path):
    dead = replace(this_process(), pid=2**22 + 1)  # more than any process id
    (tmp_path / "run.lock").write_text(json.dumps(asdict(dead)))
    (tmp_path / "checkpoints").mkdir()
    left = [tmp_path / f".metrics.csv.{dead.pid}.part", tmp_path / "checkpoints" / f".last.ckpt.{dead.pid}.part"]
    others = [tmp_path / "checkpoints" / ".last.ckpt.1.part", tmp_path / "checkpoints" / "last.ckpt"]
    for file in (*left, *others):
        file.write_text("half")
    take_lock(tmp_path)
    assert not any(file.exists() for file in left)
    assert all(file.exists() for file in others)
