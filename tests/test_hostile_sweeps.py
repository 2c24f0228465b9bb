"""The folder of a sweep that somebody else has made: what could run code is refused in one line, unless it is typed."""

import json
import os
import subprocess
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from programs import evaluate, train

from lipformer.errors import UsageError
from lipformer.program.job_process import COMMAND, PACKAGE, settle
from lipformer.program.plugins.lipformer_grid import GridSweeper
from lipformer.program.search import open_search
from lipformer.program.sweep_plan import expand_resume
from lipformer.runs.search import Search, read_search
from lipformer.runs.sweep import SweepPlan, read_plan, write_plan

HARMFUL = (
    "+hydra.callbacks.x={_target_:os.mkdir,path:/tmp/x}",
    "hydra/callbacks=x",
    "hydra={callbacks:{x:{a:1}}}",
    "callbacks@hydra.callbacks.x=checkpoint",
    "optimizer._target_=os.system",
    "hydra.sweeper.x=1",
    "hydra/sweeper=basic",
    "hydra.searchpath=[file:///tmp]",
    "hydra.job.env_set.PATH=/tmp",
    "hydra.job.env_copy=[HOME]",
    "~hydra/config",
    "hydra.job_logging.formatters.x.()=os.getcwd",
    "hydra.launcher.setup=[id]",
    "hydra.launcher.address=somewhere:1",
    "hydra.launcher.partition='a\nid'",
    "--config-dir=/tmp",
    "-cd=/tmp",
    "--config-n=x",
    "name=${oc.env:HOME}",
    "name=${oc.decode:x}",
    "name=${lipformer.folder:${seed}}",
    "name=${hydra.job.num}",
    "allow_targets=[os]",
    "hydra.sweep.subdir=${oc.env:HOME}",
)
HARMLESS = [
    "lr=1e-3,1e-2",
    "depth=choice(1,2)",
    "schedule.total_steps=${trainer.max_steps}",
    "hydra/launcher=joblib",
    "hydra.launcher.n_jobs=2",
    "hydra.launcher.gpus=[0,1]",
    "hydra.sweep.subdir=${hydra.job.num}-${hydra:job.override_dirname}",
    "logger=wandb",
    "~norm",
]


def planned(folder, arguments, jobs=(), directory=None):
    folder.mkdir(exist_ok=True)
    write_plan(folder, SweepPlan("train", list(arguments), directory or os.getcwd(), [list(job) for job in jobs]))
    return f"sweep.resume={folder}"


def refused(*arguments):
    with pytest.raises(UsageError) as error:
        expand_resume("train", arguments)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("argument", HARMFUL)
def test_what_could_run_code_has_to_be_typed_again(argument, tmp_path):
    resume = planned(tmp_path / "a", ["lr=1,2", argument])
    message = refused("-m", resume)
    assert message.startswith(" ".join(argument.split())[:200])
    assert message.endswith(f"type the whole command again beside {resume}")
    assert argument in expand_resume("train", ["-m", "lr=1,2", argument, resume])  # it is the user's own, then
    resume = planned(tmp_path / "b", ["lr=1,2"], [["lr=1", argument]])
    assert "type the whole command again" in refused("-m", resume)
    assert "type the whole command again" in refused("-m", "lr=1,2", resume)
    assert "type the whole command again" in refused("-m", resume, "sweep.trials=3")


def test_a_value_of_ones_own_argument_is_ones_own_in_a_job(tmp_path):
    typed = ["norm._target_=mine.A,mine.B", "allow_targets=['mine', 'other']"]
    jobs = [["norm._target_=mine.A", "allow_targets=[mine,other]"], ["norm._target_=mine.B"]]
    expand_resume("train", ["-m", *typed, planned(tmp_path / "a", typed, jobs)])
    assert "norm._target_=os.system" in refused(
        "-m", *typed, planned(tmp_path / "b", typed, [*jobs, ["norm._target_=os.system"]])
    )


def test_what_runs_no_code_need_not_be_typed(tmp_path):
    resume = planned(tmp_path, HARMLESS, [["lr=1e-3", "depth=1"]])
    assert expand_resume("train", ["-m", resume])[1 : 1 + len(HARMLESS)] == HARMLESS


def test_no_code_runs_from_the_command_line(tmp_path, monkeypatch, capsys):
    argument = f"+hydra.callbacks.x={{_target_:os.mkdir,path:{tmp_path / 'ran'}}}"
    resume = planned(tmp_path / "a", ["lr=1,2", argument])
    monkeypatch.setattr("programs.TINY", ())
    assert train(monkeypatch, "-m", resume) == 2
    assert not (tmp_path / "ran").exists()
    assert capsys.readouterr().err.count("\n") == 1


def test_a_job_that_is_a_text_is_damage(tmp_path):
    (tmp_path / "sweep.json").write_text('{"program": "train", "arguments": [], "directory": "/", "jobs": ["abc"]}')
    with pytest.raises(UsageError, match="is damaged"):
        read_plan(tmp_path)


def test_a_job_imports_nothing_from_the_directory_of_the_plan(tmp_path):
    (tmp_path / "pickle.py").write_text("open('ran', 'w')")
    path = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    subprocess.run(COMMAND, cwd=tmp_path, env=path, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert not (tmp_path / "ran").exists()


# --- the database of a search ------------------------------------------------------------------------------------


def searched(folder, **changed):
    values = {**vars(Search("a", None, "search", {"lr": "1,2"}, "none", 0, 0, None)), **changed}
    (folder / "search.json").write_text(json.dumps(values))


@pytest.mark.parametrize("changed", [{"storage": 5}, {"storage": ["x"]}, {"max_steps": "9"}, {"space": 3}])
def test_types_of_a_search(changed, tmp_path):
    searched(tmp_path, **changed)
    with pytest.raises(UsageError, match=r"search\.json is damaged"):
        read_search(tmp_path)


def test_a_database_is_the_users_own(tmp_path):
    pytest.importorskip("optuna")
    searched(tmp_path, storage=f"sqlite:///{tmp_path / 'theirs.db'}")
    for storage in (None, str(tmp_path / "mine.db")):
        config = OmegaConf.create({"sweep": {"storage": storage, "study": "search"}})
        with pytest.raises(UsageError, match="it names another database than"):
            open_search(tmp_path, config, SimpleNamespace(typed={"lr": "1,2"}))
    assert not list(tmp_path.glob("*.db"))


def test_a_grid_opens_no_database(tmp_path):
    searched(tmp_path, storage=f"sqlite:///{tmp_path / 'theirs.db'}")
    sweeper = GridSweeper()
    sweeper.config = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}}})
    with pytest.raises(UsageError, match=r"is a search \(it holds search.json\)"):
        sweeper.sweep(["lr=1,2"])


# --- the terminal ------------------------------------------------------------------------------------------------


def test_control_characters_of_a_plan_are_shown_as_codes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    evil = tmp_path / "\x1b[31mred"
    evil.mkdir()
    expand_resume("train", ["-m", planned(tmp_path / "a", ["lr=1"], directory=str(evil))])
    monkeypatch.chdir(tmp_path)
    assert "working in" in (out := capsys.readouterr().out)
    assert "\x1b" not in out
    monkeypatch.setattr("programs.TINY", ())
    assert evaluate(monkeypatch, "-m", planned(tmp_path / "b", ["name=\x1b[2J", "--x\x1b]0;t"])) == 2
    assert train(monkeypatch, "-m", planned(tmp_path / "c", ["name=\x1b[2J"]), "seed=1") == 2
    settle(SimpleNamespace(folder=tmp_path / "none", number=0, asked=lambda: False), "\x1b[31m")
    err = capsys.readouterr().err
    assert err.count("error: ") == 3
    assert "\x1b" not in err
