"""The search behind a sweep: an Optuna study with a trial for each job, in a storage that outlives the process."""

import contextlib
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lipformer.errors import UsageError, one_line
from lipformer.runs import layout
from lipformer.runs.outcome import Outcome
from lipformer.runs.plain_files import read_json
from lipformer.system.atomic import replace_text

if TYPE_CHECKING:  # slow to import, and an extra
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

SEARCH, JOB, REPEATS, SURPLUS, STATUS, REASON = "search", "job", "repeats", "surplus", "status", "reason"
"""Attributes of a trial: its sweep, its job there, the trial it repeats, whether it is one too many, how it ended."""
OVERRIDES = "overrides"
"""Attribute of a study: what its trials have in common, and what is searched."""
PATIENCE = 60
"""Seconds that a process waits while another one writes into the same SQLite file."""


@dataclass(frozen=True)
class Search:
    """What the jobs of a sweep have to know of its study; stored in the sweep folder.

    Attributes:
        id: tells the trials of this sweep from those of others in the same study.
        storage: URL of the database; None: `layout.STUDY` in the sweep folder.
        study: name of the study.
        space: what is searched: key -> values, as typed.
        pruner: ``median``, ``hyperband`` or ``none``.
        prune_after_trials: trials that have to be complete before any is pruned, for ``median``.
        prune_after_steps: steps before which no trial is pruned.
        max_steps: steps of a whole training, for ``hyperband``; None if that is not known.
    """

    id: str
    storage: str | None
    study: str
    space: dict[str, str]
    pruner: str
    prune_after_trials: int
    prune_after_steps: int
    max_steps: int | None


def write_search(sweep: Path, search: Search) -> None:
    """Store the search in the folder of its sweep.

    Raises:
        WriteError: the file cannot be written.
    """
    replace_text(sweep / layout.SEARCH, json.dumps(asdict(search), indent=2) + "\n")


def read_search(sweep: Path) -> Search | None:
    """Return the search in the folder of a sweep; None if the sweep is no search.

    Raises:
        UsageError: the file is there, but damaged.
    """
    file = sweep / layout.SEARCH
    if not file.is_file():
        return None
    told: Any = read_json(file)
    try:
        search = Search(**told)
        texts = [search.id, search.study, search.pruner, *search.space, *search.space.values()]
        numbers = [search.prune_after_trials, search.prune_after_steps]
        texts += [] if search.storage is None else [search.storage]
        numbers += [] if search.max_steps is None else [search.max_steps]
        if all(type(text) is str for text in texts) and all(type(number) is int for number in numbers):
            return search
    except (TypeError, AttributeError):  # other keys, or a space without keys and values
        pass
    raise UsageError(f"{file} is damaged: it does not hold a search; start the sweep anew")


class Trials:
    """The trials of a search, in its study.

    A trial is made together with its job's number, in one transaction, so that a process that is killed at any moment
    leaves none without a job. It is running in the study until `tell` was called, whatever becomes of the processes.

    Args:
        sweep: the folder of the sweep.
        search: the search.
        sampler: chooses the values of new trials; None where none are made.

    Raises:
        UsageError: Optuna is not installed, or the database cannot be opened.
    """

    def __init__(self, sweep: Path, search: Search, sampler: "optuna.samplers.BaseSampler | None" = None):
        url = search.storage or f"sqlite:///{(sweep / layout.STUDY).absolute()}"
        self._search = search
        self._optuna = import_optuna()
        with _explained(url):
            self._storage = _open_storage(url)
            self._study = self._optuna.create_study(
                storage=self._storage,
                study_name=search.study,
                direction="minimize",
                load_if_exists=True,
                sampler=sampler or self._optuna.samplers.RandomSampler(),
                pruner=_pruner(search),
            )
        self._id = self._storage.get_study_id_from_name(search.study)

    def counted(self) -> list["FrozenTrial"]:
        """Return the trials that count, of all sweeps that share the study: no repetitions, none that was too many."""
        return [t for t in self._all() if REPEATS not in t.user_attrs and SURPLUS not in t.user_attrs]

    def of_jobs(self) -> dict[int, "FrozenTrial"]:
        """Return the trial of each job of this sweep, by its number; the last one if the job was repeated."""
        own = [t for t in self._all() if t.user_attrs.get(SEARCH) == self._search.id and SURPLUS not in t.user_attrs]
        return {t.user_attrs[JOB]: t for t in own}

    def place(self, trial: "FrozenTrial") -> int:
        """Return the number of trials that count and were made before `trial`."""
        return sum(earlier.number < trial.number for earlier in self.counted())

    def agree(self, overrides: Sequence[str]) -> None:
        """Store what the study searches, or compare it with what another sweep has stored.

        Args:
            overrides: those of all trials; of what is searched, with the values to choose from.

        Raises:
            UsageError: the study searches something else.
        """
        stored = self._study.user_attrs.get(OVERRIDES)
        if stored is None:
            self._study.set_user_attr(OVERRIDES, list(overrides))
        elif stored != list(overrides):
            raise UsageError(
                f"the study {self._search.study} is of {' '.join(stored)}, not {' '.join(overrides)}: give it another "
                "name with sweep.study=<name>"
            )

    def add(self, job: int, most: int) -> "FrozenTrial | None":
        """Make a trial for a job; None if there are `most` trials already, which other sweeps may have made."""
        if len(self.counted()) >= most:
            return None
        trial = self._make(job)
        return None if self.discard_surplus(trial, most) else trial

    def discard_surplus(self, trial: "FrozenTrial", most: int) -> bool:
        """Return whether a trial is one too many, as two sweeps may each make the last one; it then counts no more."""
        surplus = self.place(trial) >= most
        if surplus:
            self._storage.set_trial_user_attr(self._key(trial), SURPLUS, True)
            self._storage.set_trial_state_values(self._key(trial), self._optuna.trial.TrialState.FAIL)
        return surplus

    def repeat(self, trial: "FrozenTrial") -> "FrozenTrial":
        """Make a trial with the job and the values of one that failed: what has ended cannot be changed in a study."""
        return self._make(trial.user_attrs[JOB], trial)

    def choose(self, trial: "FrozenTrial", space: Mapping[str, "BaseDistribution"]) -> dict[str, Any]:
        """Return the values of a trial; those that it has not yet are chosen and stored."""
        if set(trial.params) == set(space):
            return dict(trial.params)
        asking = self._optuna.trial.Trial(self._study, self._key(trial))
        return {name: _suggest(asking, name, distribution) for name, distribution in space.items()}

    def report(self, trial: "FrozenTrial", step: int, score: float) -> bool:
        """Store a score of a running trial; return whether the trial is hopeless beside the others.

        Args:
            trial: the trial.
            step: number of optimizer steps so far.
            score: the objective on valid; lower is better.
        """
        self._storage.set_trial_intermediate_value(self._key(trial), step, score)
        if step < self._search.prune_after_steps:
            return False
        return self._study.pruner.prune(self._study, self._storage.get_trial(self._key(trial)))

    def tell(self, trial: "FrozenTrial", outcome: Outcome) -> bool:
        """End a running trial by the outcome of its job; return False if the job has not ended.

        A trial that diverged is ``PRUNED``: samplers learn from it that it was bad, while a score of infinity would
        be one that the pruner compares the scores of others with. One that failed is ``FAIL``: it says nothing about
        its values, and samplers pass over it.
        """
        states = {"pruned": "PRUNED", "diverged": "PRUNED", "failed": "FAIL", "finished": "COMPLETE"}
        if outcome.status not in states:
            return False
        score = outcome.best if outcome.status == "finished" else None
        state = "FAIL" if outcome.status == "finished" and score is None else states[outcome.status]
        for name, text in ((STATUS, outcome.status), (REASON, outcome.reason)):
            self._storage.set_trial_user_attr(self._key(trial), name, text)
        self._study.tell(trial.number, score, self._optuna.trial.TrialState[state])
        return True

    def _all(self) -> Sequence["FrozenTrial"]:
        return self._study.get_trials(deepcopy=False)

    def _key(self, trial: "FrozenTrial") -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._id, trial.number)

    def _make(self, job: int, repeated: "FrozenTrial | None" = None) -> "FrozenTrial":
        attributes: dict[str, Any] = {SEARCH: self._search.id, JOB: job}
        if repeated is not None:
            attributes[REPEATS] = repeated.number
        template = self._optuna.create_trial(
            state=self._optuna.trial.TrialState.RUNNING,
            user_attrs=attributes,
            params=dict(repeated.params) if repeated else None,
            distributions=dict(repeated.distributions) if repeated else None,
        )
        return self._storage.get_trial(self._storage.create_new_trial(self._id, template))


class JobTrial:
    """The trial of one job, for the process that trains it.

    Attributes:
        number: of the trial, in the study.
    """

    def __init__(self, trials: Trials, trial: "FrozenTrial"):
        self._trials, self._trial = trials, trial
        self.number = trial.number

    def report(self, step: int, score: float) -> bool:
        """Store a score; return whether the trial is hopeless (`Trials.report`)."""
        return self._trials.report(self._trial, step, score)


def trial_of_job(sweep: Path, job: int) -> JobTrial | None:
    """Return the trial of a job; None if its sweep is no search.

    Args:
        sweep: the folder of the sweep.
        job: the number of the job.

    Raises:
        UsageError: the study cannot be opened, or has no trial for this job.
    """
    search = read_search(sweep)
    if search is None:
        return None
    trials = Trials(sweep, search)
    trial = trials.of_jobs().get(job)
    if trial is None:
        raise UsageError(f"the study {search.study} of the sweep {sweep} has no trial for job {job}")
    return JobTrial(trials, trial)


def import_optuna() -> Any:
    """Return Optuna, silent about what it does.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise UsageError(f"sweep=optuna needs Optuna ({error}): pip install 'lipformer[optuna]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _suggest(trial: "optuna.trial.Trial", name: str, distribution: Any) -> Any:
    from optuna.distributions import CategoricalDistribution, IntDistribution

    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)
    suggest = trial.suggest_int if isinstance(distribution, IntDistribution) else trial.suggest_float
    return suggest(name, distribution.low, distribution.high, step=distribution.step, log=distribution.log)


def _open_storage(url: str) -> Any:
    """Open a database; two processes may both find it without tables and make them, one of which then fails."""
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

    # A file keeps SQLite's default journal, which survives a kill as the newer one does, and works on a disk that
    # several machines share.
    options = {"connect_args": {"timeout": PATIENCE}} if url.startswith("sqlite") else {}
    for attempt in range(10):
        try:
            return RDBStorage(url, engine_kwargs=options)
        except (OperationalError, IntegrityError, ProgrammingError) as error:
            if attempt == 9 or not any(word in str(error) for word in ("exists", "UNIQUE", "locked", "duplicate")):
                raise
            time.sleep(random.uniform(0.1, 0.5))
    raise AssertionError


@contextlib.contextmanager
def _explained(url: str) -> Iterator[None]:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, ImportError, RuntimeError, OSError) as error:
        with contextlib.suppress(SQLAlchemyError):  # not even a URL
            url = make_url(url).render_as_string(hide_password=True)
        raise UsageError(f"the study cannot be opened in {url}: {one_line(error)}") from error


def _pruner(search: Search) -> Any:
    from optuna.pruners import HyperbandPruner, MedianPruner, NopPruner

    if search.pruner == "median":
        return MedianPruner(n_startup_trials=search.prune_after_trials)
    if search.pruner == "hyperband":
        return HyperbandPruner(min_resource=max(1, search.prune_after_steps), max_resource=search.max_steps or "auto")
    return NopPruner()
