"""Tests that keep away from the account of whoever runs them, and talk to a server of their own."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from wandb_server import WandbServer, serving

FAKE_KEY = "k" * 40


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key, no settings and no $WANDB_ variable; a file of tests imports it to have it."""
    # $WANDB_SERVICE is the client's own note of its process: put back after that has ended, it would mislead the next.
    for name in [name for name in os.environ if name.startswith("WANDB_") and name != "WANDB_SERVICE"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))


@pytest.fixture(name="server")
def server_of_our_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    """A server that the client of this process talks to, with a key."""
    import wandb

    wandb.teardown()  # it reads the environment once
    with serving() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.address)
        monkeypatch.setenv("WANDB_API_KEY", FAKE_KEY)
        yield server
        server.closing.set()
        wandb.teardown()
