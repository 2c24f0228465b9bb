"""A search from the command line: jobs that are trained, pruned, killed, and gone on with."""

import csv
import signal

import pytest
from programs import TINY, start_train, train, wait_for, weights_of, write_text

optuna = pytest.importorskip("optuna")

from lipformer.runs import layout  # noqa: E402
from lipformer.runs.outcome import read_outcome  # noqa: E402

RATES = "lr=tag(log, interval(1e-3,1e-2))"
STEPS = ("trainer.max_steps=6", "trainer.val_every_steps=2")


def trials_of(file, study="search"):
    return optuna.load_study(study_name=study, storage=f"sqlite:///{file}").trials


@pytest.fixture
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "text")
    return tmp_path


def search(monkeypatch, *arguments):
    return train(monkeypatch, "-m", "sweep=optuna", "data.train=text", "hydra.sweep.dir=s", *arguments)


def test_each_trial_is_trained_in_its_folder_with_its_values(monkeypatch, here, capsys):
    assert search(monkeypatch, RATES, "depth=1,2", "sweep.trials=2", *STEPS) == 0
    trials = trials_of(here / "s" / "study.db")
    assert [trial.state.name for trial in trials] == ["COMPLETE", "COMPLETE"]
    printed = capsys.readouterr().out
    assert "sweep: 1 of 2 jobs have ended (1 finished), about" in printed
    for trial in trials:
        folder = here / "s" / str(trial.number)
        config = layout_config(folder)
        assert config["lr"] == trial.params["lr"]
        assert str(config["depth"]) == trial.params["depth"]
        assert "sweep" not in config
        assert trial.value == read_outcome(folder).best
        scores = [float(row["val/nats_per_char"]) for row in rows(folder) if row["val/nats_per_char"]]
        assert list(trial.intermediate_values) == [2, 4, 6]
        assert list(trial.intermediate_values.values()) == pytest.approx(scores)
        assert all(f"{key}={value}" in printed for key, value in trial.params.items())


def layout_config(folder):
    from omegaconf import OmegaConf

    return OmegaConf.to_container(OmegaConf.load(folder / layout.CONFIG))


def rows(folder):
    with (folder / layout.METRICS_CSV).open() as stream:
        return list(csv.DictReader(stream))


def test_a_job_that_diverges_fails_or_is_hopeless_does_not_end_the_search(monkeypatch, here, capsys):
    guard = ("callbacks.divergence_guard.patience=1", "callbacks.divergence_guard.loss_above=null,0.01")
    options = ("sweep.sampler=grid", "sweep.trials=5", "sweep.prune_after_trials=1", "sweep.prune_after_steps=2")
    code = search(monkeypatch, *guard, "data.train=text,missing", "lr=0.01,1e-12", *options, *STEPS)
    assert code == 1
    outcomes = [read_outcome(here / "s" / str(job)) for job in range(5)]
    assert [outcome.status for outcome in outcomes] == ["finished", "pruned", "diverged", "diverged", "failed"]
    trials = trials_of(here / "s" / "study.db")
    assert [trial.state.name for trial in trials] == ["COMPLETE", "PRUNED", "PRUNED", "PRUNED", "FAIL"]
    assert list(trials[1].intermediate_values) == [2]
    assert [trial.user_attrs["status"] for trial in trials] == [outcome.status for outcome in outcomes]
    captured = capsys.readouterr()
    assert captured.err.count("error: ") == 3
    assert "stopped at step 2" in captured.out


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["lr=1e-3"], "error: nothing to search: give a key several values"),
        ([RATES, "sweep.trials=0"], "error: sweep.trials=0: it must be at least 1"),
        ([RATES, "sweep.sampler=best"], "error: sweep.sampler=best: it must be one of tpe, random, grid"),
        ([RATES, "attention=nope,tied_l2"], "error: attention=nope: no such choice"),
        ([RATES, "sweep.sampler=grid"], "error: sweep.sampler=grid: lr=tag(log, interval(1e-3,1e-2)) is continuous"),
        (["depht=1,2"], "error: unknown key depht (did you mean depth?)"),
        (["lr=interval(2,1)"], "error: lr=interval(2,1): the ends must be in ascending order"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_before_any_job(monkeypatch, here, capsys, typed, said):
    assert search(monkeypatch, *typed) == 2
    error = capsys.readouterr().err
    assert error.startswith(said)
    assert error.count("\n") == 1
    assert not (here / "s").exists()


def test_parameters_in_a_file_of_ones_own(monkeypatch, here):
    (here / "conf" / "sweep").mkdir(parents=True)
    (here / "conf" / "sweep" / "mine.yaml").write_text(
        "defaults: [optuna, _self_]\nparams:\n  lr: tag(log, interval(1e-3, 1e-2))\n  seed: range(1, 3)\ntrials: 1\n"
    )
    code = train(monkeypatch, "-m", "--config-dir=conf", "sweep=mine", "data.train=text", "hydra.sweep.dir=s")
    assert code == 0
    (trial,) = trials_of(here / "s" / "study.db")
    assert set(trial.params) == {"lr", "seed"}


def test_a_resumed_search_may_have_more_trials_and_trains_no_other_again(monkeypatch, here, capsys):
    search(monkeypatch, RATES, "sweep.trials=1", *STEPS)
    before = (here / "s" / "0" / "train.log").read_bytes()
    capsys.readouterr()
    assert search(monkeypatch, *TINY, RATES, "sweep.trials=2", *STEPS, "sweep.resume=s") == 0
    assert (here / "s" / "0" / "train.log").read_bytes() == before
    assert [trial.state.name for trial in trials_of(here / "s" / "study.db")] == ["COMPLETE", "COMPLETE"]


def start_search(folder, *arguments):
    slow = ("trainer.max_steps=200", "trainer.val_every_steps=5", "sweep.trials=3", "sweep.pruner=none")
    typed = ("-m", "sweep=optuna", RATES, "data.train=text", "hydra.sweep.dir=s")
    return start_train(*typed, *slow, *arguments, folder=folder)


@pytest.mark.slow
def test_a_search_killed_by_the_system_goes_on(monkeypatch, here):
    """Its second job had a checkpoint, and goes on from there: all is as if the search had never been killed."""
    (here / "whole").mkdir()
    write_text(here / "whole" / "text")
    whole = start_search(here / "whole")
    killed = start_search(here)
    wait_for(here / "s" / "1" / layout.CHECKPOINTS / layout.LAST, killed)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert [trial.state.name for trial in trials_of(here / "s" / "study.db")] == ["COMPLETE", "RUNNING"]
    resumed = start_search(here, *TINY, "sweep.resume=s")  # the whole command line once more
    output, errors = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, errors
    assert "continuing" in output
    assert whole.wait(timeout=300) == 0
    told = [trials_of(folder / "s" / "study.db") for folder in (here, here / "whole")]
    assert [(t.state, t.params, t.value) for t in told[0]] == [(t.state, t.params, t.value) for t in told[1]]
    for job in range(3):
        weights = [weights_of(folder / "s" / str(job)) for folder in (here, here / "whole")]
        assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])


@pytest.mark.slow
def test_ctrl_c_saves_the_job_and_leaves_its_trial_running(here):
    process = start_search(here)
    wait_for(here / "s" / "1" / layout.CHECKPOINTS / layout.LAST, process)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "go on with: python train.py -m sweep.resume=" in output
    assert read_outcome(here / "s" / "1").status == "interrupted"
    assert [trial.state.name for trial in trials_of(here / "s" / "study.db")] == ["COMPLETE", "RUNNING"]
    resumed = start_search(here, *TINY, "sweep.resume=s")  # the whole command line once more
    output, errors = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, errors
    trials = trials_of(here / "s" / "study.db")
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 3
    assert "continuing" in output


@pytest.mark.slow
def test_two_sweeps_at_once_share_a_study(here):
    """Together they make the trials that were asked for, each once."""
    shared = ("sweep.storage=shared.db", "sweep.study=both", "sweep.trials=6", "trainer.max_steps=6")
    typed = ("-m", "sweep=optuna", RATES, "depth=1,2", "data.train=text", *shared)
    sweeps = [start_train(*typed, f"hydra.sweep.dir={name}", folder=here) for name in "ab"]
    for process in sweeps:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    trials = [t for t in trials_of(here / "shared.db", "both") if "surplus" not in t.user_attrs]
    assert len(trials) == 6
    assert {trial.state.name for trial in trials} <= {"COMPLETE", "PRUNED"}
    assert len({tuple(trial.params.items()) for trial in trials}) == 6
    jobs = {name: [f for f in (here / name).iterdir() if f.is_dir()] for name in "ab"}
    assert all(jobs.values())
    assert sum(map(len, jobs.values())) == 6
    told = sorted(t.value for t in trials if t.state.name == "COMPLETE")
    outcomes = [read_outcome(folder) for folders in jobs.values() for folder in folders]
    assert told == sorted(outcome.best for outcome in outcomes if outcome.status == "finished")
