"""A wandb server out of order, and the real client: the training goes on, and what was logged can be sent later."""

import logging
import shlex
import socket
import subprocess
import sys

import pytest
from programs import start_train, write_text
from wandb_account import FAKE_KEY, no_account, server_of_our_own  # noqa: F401
from wandb_record import read_runs
from wandb_server import FILE_STREAM, serving

from lipformer.runs.outcome import read_outcome
from lipformer.training.loggers.choices import finished, log_samples, wandb_logger

CONFIG = {"name": "tiny", "resume": None}
SILENCE, BROKEN, REFUSED = None, 500, 403  # no answer at all; a fault of the server; and one that is final


def logged_run(folder, server, later):
    """Log three rows, and a table, to a run; `later` are the faults from the second one on."""
    logger = wandb_logger(
        folder=folder, config=CONFIG, project="p", entity=None, mode="online", init_timeout=3, finish_timeout=2
    )
    with finished(logger):
        for step in range(3):
            logger.log_metrics({"train/tokens": 10.0 * step, "train/lr": 0.5}, step)
            server.faults.update(later)
        log_samples([logger], ["the mat"], step=2, tokens=20)


def send_later(line, server, folder):
    """Do as a line of the log says, `wandb sync ...`, when the server is well again; return the runs it then has."""
    server.faults.clear()
    assert server.rows in ({}, {run: [] for run in server.runs})
    command = shlex.split(line[line.index("wandb sync") :])
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done
    return {run: [row["train/tokens"] for row in rows] for run, rows in server.rows.items()}


def lines_of(caplog):
    return [r.getMessage() for r in caplog.records if r.name.startswith("lipformer")]


@pytest.mark.parametrize(
    "fault", [BROKEN, pytest.param(SILENCE, marks=pytest.mark.slow), pytest.param(REFUSED, marks=pytest.mark.slow)]
)
def test_a_server_that_does_not_take_the_run(tmp_path, server, caplog, fault):
    server.faults["*"] = fault
    with caplog.at_level(logging.INFO):
        logged_run(tmp_path, server, later={})
    refused, offline = lines_of(caplog)
    assert refused.startswith("wandb: offline, as the server did not take the run: ")
    assert "\n" not in refused
    assert offline.startswith("wandb: upload later with: wandb sync ")
    (run,) = read_runs(tmp_path)
    assert run.exit_code == 0
    assert [row["train/tokens"] for row in run.history] == [0, 10, 20, 20]
    assert send_later(offline, server, tmp_path) == {run.id: [0, 10, 20, 20]}
    assert server.exit_codes == {run.id: 0}


@pytest.mark.parametrize(
    ("of", "fault"),
    [
        ("*", BROKEN),
        (FILE_STREAM, REFUSED),
        pytest.param("*", SILENCE, marks=pytest.mark.slow),
        pytest.param("*", REFUSED, marks=pytest.mark.slow),
        pytest.param(FILE_STREAM, SILENCE, marks=pytest.mark.slow),
        pytest.param(FILE_STREAM, BROKEN, marks=pytest.mark.slow),
    ],
)
def test_a_server_that_fails_in_the_middle(tmp_path, server, caplog, monkeypatch, of, fault):
    monkeypatch.setattr("wandb.Api._HTTP_TIMEOUT", 1)  # seconds; a table asks the server who we are
    with caplog.at_level(logging.INFO):
        logged_run(tmp_path, server, later={of: fault})
    begun, *samples, lost = lines_of(caplog)
    assert len(samples) == (of == "*")
    assert all(line.startswith("WandbRunLogger: the samples were not logged: ") for line in samples)
    assert begun.startswith(f"wandb: {server.address}/")
    assert lost.startswith("wandb: not all was uploaded (")
    assert ("403" if fault == REFUSED else "Timed out finishing run.") in lost
    assert not any("\n" in line for line in (begun, *samples, lost))
    (run,) = server.runs
    assert server.exit_codes == {}
    assert send_later(lost, server, tmp_path) == {run: [0, 10, 20] if samples else [0, 10, 20, 20]}
    assert server.exit_codes == {run: 0}


def test_a_server_that_is_well(tmp_path, server, caplog):
    with caplog.at_level(logging.INFO):
        logged_run(tmp_path, server, later={})
    (begun,) = lines_of(caplog)
    (run,) = server.runs
    assert begun == f"wandb: {server.address}/us/lipformer/runs/{run}"
    assert [row["train/tokens"] for row in server.rows[run]] == [0, 10, 20, 20]
    assert "metrics" not in server.asked  # what the client reports about itself, and waits for at the end


# --- the program -----------------------------------------------------------------------------------------------


def trained(folder, address, *options):
    """Train; return what the program printed, once sure that it came to the usual end."""
    write_text(folder / "text")
    process = start_train(
        "data.train=text",
        "hydra.run.dir=run",
        "logger=wandb",
        "logger.init_timeout=2",
        "logger.finish_timeout=2",
        *options,
        folder=folder,
        WANDB_BASE_URL=address,
        WANDB_API_KEY=FAKE_KEY,
    )
    output, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors
    assert "wandb" not in errors
    outcome = read_outcome(folder / "run")
    assert (outcome.status, outcome.exit_code) == ("finished", 0)
    assert outcome.best > 0
    return output


def test_a_server_that_cannot_be_reached(tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    output = trained(tmp_path, address)
    assert output.count("wandb: offline, as the server did not take the run") == 1
    (run,) = read_runs(tmp_path / "run")
    assert run.exit_code == 0


@pytest.mark.slow  # quick: test_a_server_that_does_not_take_the_run
@pytest.mark.parametrize("fault", [SILENCE, BROKEN])
def test_training_beside_a_server_that_does_not_take_the_run(tmp_path, fault):
    with serving() as server:
        server.faults["*"] = fault
        output = trained(tmp_path, server.address)
        assert output.count("wandb: offline, as the server did not take the run") == 1
        (run,) = read_runs(tmp_path / "run")
    assert run.exit_code == 0
    assert run.history


@pytest.mark.slow  # quick: test_a_server_that_fails_in_the_middle
@pytest.mark.parametrize("fault", [SILENCE, BROKEN, REFUSED])
def test_training_beside_a_server_that_fails_in_the_middle(tmp_path, fault, monkeypatch):
    with serving() as server:
        server.faults[FILE_STREAM] = fault
        output = trained(tmp_path, server.address)
        (line,) = (line for line in output.splitlines() if "not all was uploaded" in line)
        monkeypatch.setenv("WANDB_BASE_URL", server.address)
        monkeypatch.setenv("WANDB_API_KEY", FAKE_KEY)
        assert all(send_later(line, server, tmp_path).values())
