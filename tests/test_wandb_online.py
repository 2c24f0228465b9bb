"""A wandb run on a server: begun, continued, or turned offline where the server does not answer."""

import json
import logging
from types import SimpleNamespace

import pytest
from programs import start_train, write_text
from wandb_account import FAKE_KEY, no_account  # noqa: F401
from wandb_offline import CONFIG, warnings_of
from wandb_record import read_runs
from wandb_server import serving

from lipformer.training.loggers import wandb_mode
from lipformer.training.loggers.choices import finished, wandb_logger
from lipformer.training.loggers.wandb_run import earlier_run_id


class Init:
    """Stands for `wandb.init`: takes online runs as told, and begins the others as the client does."""

    def __init__(self, refuse=False):
        import wandb

        self.calls, self.refuse, self.begin, self.error = [], refuse, wandb.init, wandb.errors.CommError

    def __call__(self, **options):
        self.calls.append(options)
        if options["mode"] == "offline":
            return self.begin(**options)
        if self.refuse:
            (options["dir"] / "wandb" / "run-20260101_000000-shell").mkdir(parents=True)
            raise self.error("no answer\nConsider increasing the init_timeout")
        nothing = lambda *args, **kwargs: None  # noqa: E731
        methods = {"define_metric": nothing, "finish": nothing, "summary": SimpleNamespace(update=nothing)}
        folder = options["dir"] / "wandb" / "run-20260101_000000-id1"
        return SimpleNamespace(id="id1", url="https://host/id1", dir=str(folder / "files"), **methods)


@pytest.fixture
def online(monkeypatch):
    def build(folder, init, **config):
        monkeypatch.setattr("wandb.init", init)
        monkeypatch.setattr(wandb_mode, "has_credentials", lambda: True)
        options = {"project": "tests", "entity": "us", "mode": "online", "init_timeout": 5, "finish_timeout": 6}
        return wandb_logger(folder=folder, config=CONFIG | config, **options)

    return build


def test_online_run(tmp_path, online, caplog):
    init = Init()
    logger = online(tmp_path, init)
    with caplog.at_level(logging.INFO), finished(logger):
        _ = logger.experiment
    (options,) = init.calls
    assert (options["project"], options["entity"], options["dir"]) == ("tests", "us", tmp_path)
    assert options["reinit"] == "finish_previous"
    assert "id" not in options
    assert "resume" not in options
    assert type(options["config"]) is dict
    assert (options["settings"].init_timeout, options["settings"].finish_timeout) == (5, 6)
    assert "wandb: https://host/id1" in caplog.messages
    assert earlier_run_id(tmp_path / "new", str(tmp_path)) == "id1"


def test_server_that_does_not_answer_turns_the_run_offline(tmp_path, online, caplog):
    init = Init(refuse=True)
    logger = online(tmp_path, init)
    with finished(logger):
        logger.log_metrics({"val/nats_per_char": 2.0}, 0)
    assert [call["mode"] for call in init.calls] == ["online", "offline"]
    assert warnings_of(caplog) == ["wandb: offline, as the server did not take the run: no answer"]
    (run,) = read_runs(tmp_path)
    assert run.exit_code == 0
    assert not list(tmp_path.glob("wandb/run-*"))
    assert not (tmp_path / "wandb.json").exists()


@pytest.mark.parametrize("resume", ["", "checkpoints/last.ckpt"])
def test_a_continued_run_continues_its_online_run(tmp_path, online, resume):
    before, after = tmp_path / "before", tmp_path / "after"
    (before / "checkpoints").mkdir(parents=True)
    after.mkdir()
    (before / "checkpoints" / "last.ckpt").touch()
    (before / "wandb.json").write_text(json.dumps({"id": "id0", "url": "https://host/id0"}))
    init = Init()
    _ = online(after, init, resume=str(before / resume)).experiment
    (options,) = init.calls
    assert (options["id"], options["resume"]) == ("id0", "allow")
    assert "name" not in options


def test_a_continued_run_is_a_new_one_where_the_old_was_offline(tmp_path):
    assert earlier_run_id(tmp_path / "new", str(tmp_path)) is None
    assert earlier_run_id(tmp_path / "new", None) is None


@pytest.mark.slow  # quick: test_online_run, test_a_continued_run_continues_its_online_run
def test_online_run_and_its_continuation_with_the_real_client(tmp_path):
    write_text(tmp_path / "text")
    with serving() as server:
        for arguments in (
            ("hydra.run.dir=first", "data.train=text", "seed=7"),
            ("hydra.run.dir=second", "resume=first", "trainer.max_steps=6"),
        ):
            process = start_train(
                *arguments, "logger=wandb", folder=tmp_path, WANDB_BASE_URL=server.address, WANDB_API_KEY=FAKE_KEY
            )
            output, errors = process.communicate(timeout=180)
            assert process.returncode == 0, errors
            assert f"wandb: {server.address}/" in output
    ((run, requests),) = server.runs.items()
    assert server.exit_codes == {run: 0}
    assert json.loads(requests[0]["config"])["seed"] == {"value": 7}
    assert "seed=7" in requests[0]["displayName"]
    assert not any("resume" in (request["displayName"] or "") for request in requests)
    assert earlier_run_id(tmp_path / "new", str(tmp_path / "second")) == run
