"""What callbacks of the progress see of a trainer, and a clock that a test sets by hand."""

import time
from types import SimpleNamespace

import pytest
import torch


@pytest.fixture(name="now")
def clock_by_hand(monkeypatch):
    """Seconds of `time.perf_counter`, for a test to set."""
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(time, "perf_counter", lambda: now.seconds)
    return now


def trainer(step=0, last=20, every=5, **metrics):
    return SimpleNamespace(
        global_step=step,
        max_steps=last,
        max_epochs=-1,
        val_check_interval=every,
        num_val_batches=[4],
        is_global_zero=True,
        callback_metrics={name: torch.tensor(value) for name, value in metrics.items()},
        callbacks=[],
    )
