"""wandb lost in the middle of a training, in a process of its own: the training ends well, and no row is missing."""

import threading
import time

import pytest
from fault_trials import RUN, run_faulty, train_on
from programs import write_text
from wandb_account import FAKE_KEY
from wandb_server import RESET, serving

from lipformer.runs.metrics_csv import read_rows
from lipformer.runs.outcome import read_outcome

FAULTS = {"silence": None, "an error": 500, "a refusal": 403, "a reset connection": RESET}


def lose(server, fault):
    """Put the server out of order as soon as it has taken the run."""
    while not server.runs:
        time.sleep(0.01)
    server.faults["*"] = fault


@pytest.mark.fault("wandb lost in the middle")
@pytest.mark.parametrize(
    "kind", [k if k == "a reset connection" else pytest.param(k, marks=pytest.mark.slow) for k in FAULTS]
)
def test_wandb_is_lost_in_the_middle(kind, tmp_path):
    write_text(tmp_path / "text.txt")
    logger = ("logger=wandb", "logger.init_timeout=10", "logger.finish_timeout=3")
    command = (*RUN, "data.train=text.txt")
    with serving() as server:
        threading.Thread(target=lose, args=(server, FAULTS[kind]), daemon=True).start()
        account = {"WANDB_BASE_URL": server.address, "WANDB_API_KEY": FAKE_KEY}
        done = run_faulty(*command, *logger, "hydra.run.dir=run", folder=tmp_path, **account)
        assert done.code == 0, done.errors
        assert len(server.runs) == 1
        assert server.exit_codes == {}
    assert "wandb: not all was uploaded" in done.output
    assert read_outcome(tmp_path / "run").status == "finished"
    assert train_on(tmp_path / "without", *command, by=tmp_path).code == 0
    assert read_rows(tmp_path / "run" / "metrics.csv") == read_rows(tmp_path / "without" / "metrics.csv")
