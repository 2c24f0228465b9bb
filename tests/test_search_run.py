"""A search launches a job for each trial and tells the study how it ended; here nothing is trained."""

import random

import pytest

optuna = pytest.importorskip("optuna")
from omegaconf import OmegaConf  # noqa: E402

from lipformer.errors import UsageError  # noqa: E402
from lipformer.options.search import SearchOptions  # noqa: E402
from lipformer.program.search import SearchRun, open_search  # noqa: E402
from lipformer.program.search_space import read_space  # noqa: E402
from lipformer.program.sweep_plan import begin_plan  # noqa: E402
from lipformer.runs.outcome import Outcome  # noqa: E402
from lipformer.runs.search import read_search  # noqa: E402
from lipformer.runs.sweep import read_plan  # noqa: E402

TYPED = ("lr=tag(log, interval(1e-5,1e-2))", "attention=dot_product,tied_l2", "depth=2")


class Killed(BaseException):
    """The process of a search ends here; what it has written stays."""


class Searching:
    """Searches in a folder, as one process after another does.

    `end` says how a job ends, by its number: an outcome, None for none, or the exception that ends the process.
    """

    def __init__(self, folder, typed=TYPED, **options):
        self.folder, self.typed = folder, typed
        self.options = {"trials": 6, "pruner": "none", **options}
        self.launched, self.launcher = [], {}
        self.end = lambda number: Outcome(best=2.0)

    def run(self, **options):
        if read_plan(self.folder) is None:
            begin_plan(self.folder, "train", ["sweep=optuna", *self.typed])
        values = {**SearchOptions.defaults(), **self.options, **options}
        trainer = {"max_steps": 100, "val_every_steps": 10}
        config = OmegaConf.create({"sweep": values, "hydra": {"launcher": self.launcher}, "trainer": trainer})
        space = read_space({}, self.typed)
        self.trials = open_search(self.folder, config, space)
        SearchRun(self.folder, config, space, self.trials, self._launch).run()
        return self.trials

    def _launch(self, jobs, first):
        self.launched.append((first, len(jobs)))
        for number, overrides in enumerate(jobs, first):
            assert read_plan(self.folder).jobs[number] == [text for text in overrides if "retry" not in text]
            end = self.end(number)
            if isinstance(end, BaseException):
                raise end
            job = self.folder / str(number)
            job.mkdir(exist_ok=True)
            if end is not None:
                end.write(job)

    def states(self):
        return [trial.state.name for trial in self.trials.counted()]

    def numbers(self):
        """The job of each trial, which is its number where no other sweep shares the study."""
        return [(trial.number, trial.user_attrs["job"]) for trial in self.trials.counted()]


@pytest.fixture
def searching(tmp_path):
    return Searching(tmp_path)


def test_every_trial_is_one_job(searching):
    searching.run()
    assert searching.launched == [(number, 1) for number in range(6)]
    assert searching.states() == ["COMPLETE"] * 6
    assert searching.numbers() == [(number, number) for number in range(6)]
    for trial, overrides in zip(searching.trials.counted(), read_plan(searching.folder).jobs, strict=True):
        assert overrides == [f"lr={trial.params['lr']}", f"attention={trial.params['attention']}", "depth=2"]


@pytest.mark.parametrize("killed_at", [0, 3])
def test_a_killed_search_goes_on_with_the_trials_of_an_uninterrupted_one(tmp_path, killed_at):
    """The job that was running begins or goes on under its trial; none is lost, none counts twice."""
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole, killed = Searching(tmp_path / "whole"), Searching(tmp_path / "killed")
    score = {number: Outcome(best=random.Random(number).random()) for number in range(6)}
    whole.end = score.get
    whole.run()
    killed.end = lambda number: Killed() if number == killed_at else score[number]
    with pytest.raises(Killed):
        killed.run()
    assert killed.states() == ["COMPLETE"] * killed_at + ["RUNNING"]
    killed.end, killed.launched = score.get, []
    killed.run()
    assert killed.launched == [(number, 1) for number in range(killed_at, 6)]
    assert read_plan(killed.folder).jobs == read_plan(whole.folder).jobs
    assert [t.value for t in killed.trials.counted()] == [t.value for t in whole.trials.counted()]
    killed.launched = []
    killed.run()
    assert killed.launched == []


@pytest.mark.parametrize("step", ["_make", "choose", "tell"])
def test_killed_between_any_two_writes(searching, step, monkeypatch):
    """After the trial was made, after its values were chosen, or after the job ended and before it was told."""
    from lipformer.runs.search import Trials

    original, calls = getattr(Trials, step), []

    def dies(self, *arguments):
        calls.append(step)
        if len(calls) == 3 and step == "tell":
            raise Killed
        done = original(self, *arguments)
        if len(calls) == 3:
            raise Killed
        return done

    with monkeypatch.context() as patch:
        patch.setattr(Trials, step, dies)
        with pytest.raises(Killed):
            searching.run()
    searching.run()
    assert searching.states() == ["COMPLETE"] * 6
    assert searching.numbers() == [(number, number) for number in range(6)]
    assert sorted(first for first, _ in searching.launched) == list(range(6))
    assert len(read_plan(searching.folder).jobs) == 6


def test_jobs_that_failed_or_diverged_do_not_end_the_search(searching):
    ends = [Outcome("failed", 1, "no room"), Outcome("diverged", 3, "nan"), Outcome("pruned", 0, "hopeless")]
    searching.end = lambda number: ends[number % 3]
    searching.run()
    assert searching.states() == ["FAIL", "PRUNED", "PRUNED"] * 2


def test_several_failures_in_a_row_for_the_same_reason_end_the_search(searching, capsys):
    searching.end = lambda number: Outcome(
        "failed", 2, f"{searching.folder / str(number)}: data.train=tetx does not exist"
    )
    searching.run()
    assert searching.states() == ["FAIL"] * 3
    error = capsys.readouterr().err
    assert error.startswith("error: 3 trials in a row failed for the same reason, the search ends: ")
    assert "data.train=tetx does not exist" in error
    assert f"sweep.resume={searching.folder} sweep.retry_failed=true" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "ends",
    [
        ["a", "a", None, "a", "a", "b"],  # None: it finished
        ["a", "b", "a", "b", "a", "b"],
    ],
)
def test_other_failures_do_not(searching, ends, capsys):
    searching.end = lambda number: Outcome("failed", 1, ends[number]) if ends[number] else Outcome(best=1.0)
    searching.run()
    assert len(searching.states()) == 6
    assert capsys.readouterr().err == ""


def test_failures_without_a_limit(searching):
    searching.end = lambda number: Outcome("failed", 1, "always")
    searching.run(max_failures=None)
    assert searching.states() == ["FAIL"] * 6


def test_failed_trials_are_tried_again_only_when_asked(searching):
    searching.end = lambda number: Outcome("failed", 1, "no room") if number in (1, 3) else Outcome(best=2.0)
    searching.run()
    before = read_plan(searching.folder).jobs
    searching.launched = []
    searching.run()
    assert searching.launched == []
    searching.end = lambda number: Outcome(best=1.0)
    searching.run(retry_failed=True)
    assert searching.launched == [(1, 1), (3, 1)]
    assert read_plan(searching.folder).jobs == before
    assert [trial.state.name for trial in searching.trials.of_jobs().values()] == ["COMPLETE"] * 6
    assert searching.trials.of_jobs()[1].value == 1.0
    assert len(searching.states()) == 6


def test_jobs_that_have_not_ended_stay_running_and_are_launched_once_a_call(searching):
    """One was killed in a process of its own, one is still running there."""
    searching.end = lambda number: {1: None, 4: Outcome("running", None)}.get(number, Outcome(best=2.0))
    searching.run()
    assert [number for number, state in enumerate(searching.states()) if state == "RUNNING"] == [1, 4]
    searching.launched, searching.end = [], lambda number: Outcome(best=2.0)
    searching.run()
    assert searching.launched == [(1, 1), (4, 1)]
    assert searching.states() == ["COMPLETE"] * 6


def test_an_interrupted_job_ends_the_search(searching):
    """In a process of its own, where its exception ends nothing else."""
    searching.end = lambda number: Outcome("interrupted", 130, "Ctrl-C") if number == 2 else Outcome(best=2.0)
    searching.run()
    assert searching.states() == ["COMPLETE", "COMPLETE", "RUNNING"]


def test_several_jobs_at_once(searching):
    searching.run(jobs=4)
    assert searching.launched == [(0, 4), (4, 2)]
    assert len({tuple(job) for job in read_plan(searching.folder).jobs}) == 6


@pytest.mark.parametrize(("n_jobs", "together"), [(3, 3), (None, 1), (-1, 2), (-2, 1)])
def test_jobs_at_once_are_those_of_the_launcher(searching, n_jobs, together, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    searching.launcher = {"n_jobs": n_jobs}
    searching.run()
    assert searching.launched[0] == (0, together)


@pytest.mark.parametrize(
    ("options", "steps"),
    [({"pruner": "median"}, 25), ({"pruner": "hyperband"}, 10), ({"pruner": "median", "prune_after_steps": 3}, 3)],
)
def test_steps_before_which_nothing_is_pruned(searching, options, steps):
    searching.run(trials=1, **options)
    stored = read_search(searching.folder)
    assert (stored.prune_after_steps, stored.max_steps, stored.pruner) == (steps, 100, options["pruner"])


def test_jobs_at_once_left_behind_are_launched_together_where_their_numbers_follow(searching):
    searching.end = lambda number: None if number in (0, 1, 3) else Outcome(best=2.0)
    searching.run(jobs=4)
    searching.launched, searching.end = [], lambda number: Outcome(best=2.0)
    searching.run(jobs=4)
    assert searching.launched == [(0, 2), (3, 1)]


def test_more_trials_can_be_asked_for_later(searching):
    searching.run(trials=2)
    searching.run(trials=4)
    assert searching.launched == [(number, 1) for number in range(4)]


def test_two_sweeps_share_a_study(tmp_path):
    """By turns, each in a folder of its own; together they make as many trials as were asked for."""
    shared = {"storage": str(tmp_path / "shared.db"), "study": "both"}
    sweeps = [Searching(tmp_path / name, **shared) for name in ("one", "other")]
    for sweep in sweeps:
        sweep.folder.mkdir()
        sweep.end = lambda number: Killed() if number == 2 else Outcome(best=2.0)
        with pytest.raises(Killed):
            sweep.run()
    for sweep in sweeps:
        sweep.end = lambda number: Outcome(best=2.0)
        sweep.run()
    assert sweeps[0].states() == ["COMPLETE"] * 6
    jobs = [job for sweep in sweeps for job in read_plan(sweep.folder).jobs]
    assert len({tuple(job) for job in jobs}) == len(jobs) == 6
    assert [len(sweep.trials.of_jobs()) for sweep in sweeps] == [3, 3]


def test_a_shared_study_needs_a_name_and_one_search(tmp_path):
    with pytest.raises(UsageError, match=r"name the study there with sweep\.study="):
        Searching(tmp_path, storage="shared.db").run()
    shared = {"storage": f"sqlite:///{tmp_path / 'shared.db'}", "study": "both", "trials": 1}
    Searching(tmp_path, **shared).run()
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match=r"the study both is of .* depth=2, not lr=<1,2> depth=4"):
        Searching(tmp_path / "other", ("lr=1,2", "depth=4"), **shared).run()
    with pytest.raises(UsageError, match=r"searches lr=.* attention=dot_product,tied_l2, not lr=1,2"):
        Searching(tmp_path, ("lr=1,2", "depth=2"), **shared).run()


def test_the_grid_has_every_combination_once(tmp_path):
    typed = ("lr=1,2,3", "depth=range(2,9,2)", "width=64")
    grid = Searching(tmp_path, typed, sampler="grid", trials=20)
    grid.end = lambda number: Killed() if number == 5 else Outcome(best=2.0)
    with pytest.raises(Killed):
        grid.run(jobs=2)
    grid.end = lambda number: Outcome(best=2.0)
    grid.run()
    wanted = [[f"lr={lr}", f"depth={depth}", "width=64"] for lr in (1, 2, 3) for depth in (2, 4, 6, 8)]
    assert read_plan(tmp_path).jobs == wanted


def test_a_grid_of_an_interval_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"sweep\.sampler=grid: lr=tag\(log, interval\(1e-5,1e-2\)\) is continuous"):
        Searching(tmp_path, sampler="grid").run()
    assert not (tmp_path / "search.json").exists()


def test_the_random_sampler_draws_no_trial_again_after_a_resume(tmp_path):
    searching = Searching(tmp_path, sampler="random")
    for trials in range(1, 7):
        searching.run(trials=trials)
    rates = [trial.params["lr"] for trial in searching.trials.counted()]
    assert len(set(rates)) == 6
