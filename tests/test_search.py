"""The study behind a sweep: a trial for each job, none lost and none counted twice, whoever is killed."""

import json
import subprocess
import sys

import pytest

optuna = pytest.importorskip("optuna")
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution  # noqa: E402

from lipformer.errors import UsageError  # noqa: E402
from lipformer.runs.outcome import Outcome  # noqa: E402
from lipformer.runs.search import Search, Trials, read_search, trial_of_job, write_search  # noqa: E402

SPACE = {
    "lr": FloatDistribution(1e-5, 1e-2, log=True),
    "depth": IntDistribution(2, 8, step=2),
    "attention": CategoricalDistribution(["dot_product", "tied_l2"]),
}


def search(name="a", storage=None, pruner="median", after_trials=0, after_steps=0):
    return Search(name, storage, "language", {"lr": "1,2"}, pruner, after_trials, after_steps, None)


def states(trials):
    return [trial.state.name for trial in trials.counted()]


def test_the_search_is_stored_in_the_sweep(tmp_path):
    assert read_search(tmp_path) is None
    assert trial_of_job(tmp_path, 0) is None
    write_search(tmp_path, search())
    assert read_search(tmp_path) == search()


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"id": 1}'])
def test_a_damaged_search_is_named(tmp_path, text):
    (tmp_path / "search.json").write_text(text)
    with pytest.raises(UsageError, match=r"search\.json is damaged: it does not hold a search"):
        read_search(tmp_path)


def test_a_search_with_values_of_other_types_is_damaged(tmp_path):
    write_search(tmp_path, search())
    stored = json.loads((tmp_path / "search.json").read_text())
    for key, value in {"space": [], "study": None, "prune_after_steps": "x", "more": 1}.items():
        (tmp_path / "search.json").write_text(json.dumps({**stored, key: value}))
        with pytest.raises(UsageError, match="is damaged"):
            read_search(tmp_path)


def test_a_trial_is_running_until_its_outcome_is_told(tmp_path):
    """A new process finds it with its job and values, and may tell how it ended."""
    write_search(tmp_path, search())
    trials = Trials(tmp_path, search())
    values = trials.choose(trials.add(0, 2), SPACE)
    assert set(values) == set(SPACE)
    later = Trials(tmp_path, search())
    (trial,) = later.of_jobs().values()
    assert later.choose(trial, SPACE) == values
    for status in ("running", "interrupted", "terminated", "killed", "waiting"):
        assert later.tell(trial, Outcome(status, None)) is False
    assert states(trials) == ["RUNNING"]
    assert later.tell(trial, Outcome(best=2.5)) is True
    assert [(t.state.name, t.value) for t in trials.counted()] == [("COMPLETE", 2.5)]


def test_the_values_of_a_trial_that_was_killed_while_they_were_chosen(tmp_path):
    """Those that were stored stay; the others are chosen now."""
    trials = Trials(tmp_path, search())
    trial = trials.add(0, 1)
    first = trials.choose(trial, {"lr": SPACE["lr"]})
    (again,) = Trials(tmp_path, search()).of_jobs().values()
    assert trials.choose(again, SPACE)["lr"] == first["lr"]


@pytest.mark.parametrize(
    ("outcome", "state", "value"),
    [
        (Outcome(best=2.5), "COMPLETE", 2.5),
        (Outcome(best=None), "FAIL", None),
        (Outcome("pruned", 0, "hopeless", 2.0), "PRUNED", 3.0),
        (Outcome("diverged", 3, "nan", 2.0), "PRUNED", 3.0),
        (Outcome("failed", 1, "no such file"), "FAIL", None),
    ],
)
def test_state_of_a_trial_by_the_outcome_of_its_job(tmp_path, outcome, state, value):
    trials = Trials(tmp_path, search())
    trial = trials.add(0, 1)
    trials.report(trial, 5, 3.0)
    assert trials.tell(trial, outcome)
    (told,) = trials.counted()
    assert (told.state.name, told.value) == (state, value)
    assert (told.user_attrs["status"], told.user_attrs["reason"]) == (outcome.status, outcome.reason)


def test_the_sampler_keeps_away_from_where_trainings_diverge(tmp_path):
    """Above 1e-3 they diverge. By chance a third would; of those that learn from it, a fifth of that does."""
    diverged = {}
    for name in ("random", "tpe"):
        samplers = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}
        (tmp_path / name).mkdir()
        trials = Trials(tmp_path / name, search(), samplers[name](seed=0))
        rates = []
        for job in range(25):
            trial = trials.add(job, 25)
            rates.append(trials.choose(trial, {"lr": SPACE["lr"]})["lr"])
            score = 2.0 + abs(rates[-1] - 3e-4) * 1e3
            trials.tell(trial, Outcome("diverged", 3, "nan") if rates[-1] > 1e-3 else Outcome(best=score))
        diverged[name] = sum(rate > 1e-3 for rate in rates[10:])
    assert diverged["tpe"] * 2 <= diverged["random"]


def test_a_trial_worse_than_the_median_is_hopeless(tmp_path):
    rule = search(after_trials=2, after_steps=5)
    write_search(tmp_path, rule)
    trials = Trials(tmp_path, rule)
    judged = []
    for job, score in enumerate((2.0, 2.2, 3.0, 3.0, 1.0)):
        trials.add(job, 5)
        trial = trial_of_job(tmp_path, job)  # as the process of the job does
        early, late = trial.report(3, score), trial.report(6, score)
        judged.append((early, late))
        trials.tell(trials.of_jobs()[job], Outcome("pruned" if late else "finished", 0, "", score))
    assert judged == [(False, False), (False, False), (False, True), (False, True), (False, False)]


def test_without_a_pruner_nothing_is_hopeless(tmp_path):
    trials = Trials(tmp_path, search(pruner="none"))
    for job in range(3):
        trial = trials.add(job, 3)
        assert not trials.report(trial, 5, float(job))
        trials.tell(trial, Outcome(best=float(job)))


def test_hyperband_prunes(tmp_path):
    trials = Trials(tmp_path, Search("a", None, "language", {}, "hyperband", 0, 1, 27))
    pruned = 0
    for job in range(10):
        trial = trials.add(job, 10)
        pruned += any(trials.report(trial, step, float(job)) for step in (1, 3, 9, 27))
        trials.tell(trial, Outcome(best=float(job)))
    assert 0 < pruned < 10


def test_a_failed_trial_is_repeated_by_another_that_does_not_count(tmp_path):
    trials = Trials(tmp_path, search())
    values = trials.choose(trials.add(0, 2), SPACE)
    trials.add(1, 2)
    failed = trials.of_jobs()[0]
    trials.tell(failed, Outcome("failed", 1, "no such file"))
    again = trials.repeat(trials.of_jobs()[0])
    assert trials.choose(again, SPACE) == values
    assert trials.of_jobs()[0].number == again.number == 2
    assert [t.number for t in trials.counted()] == [0, 1]
    trials.tell(trials.of_jobs()[0], Outcome(best=2.0))
    assert trials.add(2, 2) is None
    assert trials.add(2, 3).number == 3


def test_the_trial_that_is_one_too_many_counts_no_more(tmp_path, monkeypatch):
    """Two sweeps look at once, each sees room for one, and both make it."""
    both = f"sqlite:///{tmp_path / 'both.db'}"
    first, second = (Trials(tmp_path, search(name, both)) for name in "ab")
    with monkeypatch.context() as patch:
        look = Trials.counted
        patch.setattr(first, "counted", lambda: look(first) if second.of_jobs() else [])
        patch.setattr(second, "counted", lambda: look(second))
        won = second.add(0, 1)
        made = first._make(0)  # it looked before
    assert won is not None
    assert first.discard_surplus(made, 1)
    assert not first.discard_surplus(won, 1)
    assert [t.user_attrs["search"] for t in first.counted()] == ["b"]
    assert first.of_jobs() == {}
    assert first.add(0, 1) is None


WORKER = """
import sys
from pathlib import Path
from lipformer.runs.outcome import Outcome
from lipformer.runs.search import Search, Trials
from optuna.distributions import FloatDistribution
from optuna.samplers import RandomSampler

folder, name = Path(sys.argv[1]), sys.argv[2]
url = f"sqlite:///{folder / 'shared.db'}"
trials = Trials(folder, Search(name, url, "language", {}, "median", 0, 0, None), RandomSampler(seed=int(name)))
job = 0
while (trial := trials.add(job, 15)) is not None:
    score = trials.choose(trial, {"lr": FloatDistribution(0.0, 1.0)})["lr"]
    trials.report(trial, 1, score)
    trials.tell(trial, Outcome(best=score))
    job += 1
print(job)
"""


def test_processes_share_a_study(tmp_path):
    """Three of them make the file, its tables and fifteen trials at once; each trial is of one of them."""
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    workers = [subprocess.Popen([*command, str(name)], stdout=subprocess.PIPE, text=True) for name in range(3)]
    made = [int(worker.communicate(timeout=120)[0]) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    trials = Trials(tmp_path, search("0", f"sqlite:///{tmp_path / 'shared.db'}")).counted()
    assert sum(made) == len(trials) == 15
    assert {trial.state.name for trial in trials} == {"COMPLETE"}
    jobs = [(trial.user_attrs["search"], trial.user_attrs["job"]) for trial in trials]
    assert sorted(jobs) == sorted((str(name), job) for name in range(3) for job in range(made[name]))


@pytest.mark.parametrize("url", ["sqlite:////no/such/folder/study.db", "nonsense", "mystery://u:secret@host/db"])
def test_a_database_that_cannot_be_opened_is_named_without_its_password(tmp_path, url):
    with pytest.raises(UsageError, match="the study cannot be opened in") as error:
        Trials(tmp_path, search(storage=url))
    assert "secret" not in str(error.value)


def test_without_optuna_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match=r"pip install 'lipformer\[optuna\]'"):
        Trials(tmp_path, search())
