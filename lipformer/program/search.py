"""A search: trials are made one after the other, launched as jobs, and told how their jobs ended."""

import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from lipformer.errors import UsageError
from lipformer.options.search import SearchOptions
from lipformer.program.sweep_plan import as_launched, store_jobs
from lipformer.runs import layout
from lipformer.runs.search import Search, Trials, read_search, write_search
from lipformer.runs.sweep import RETRY_FAILED, SweepJob, read_jobs, read_plan, resume_command
from lipformer.system.text import print_error

if TYPE_CHECKING:  # needs Optuna
    from optuna.trial import FrozenTrial

    from lipformer.program.search_space import SearchSpace


Launch = Callable[[Sequence[Sequence[str]], int], Any]
"""Launches jobs with consecutive numbers: their overrides, and the number of the first."""


def open_search(folder: Path, config: DictConfig, space: "SearchSpace") -> Trials:
    """Return the trials of a search: those of the sweep in `folder`, if it has begun, or of a new one.

    Args:
        folder: the folder of the sweep.
        config: the configuration of the sweep.
        space: what is searched.

    Raises:
        UsageError: the sweep, or another that shares its study, searches something else, or in another database.
    """
    from lipformer.program.search_samplers import open_sampler

    options = config.sweep
    search = read_search(folder)
    new = search is None
    if search is None:
        search = Search(
            id=secrets.token_hex(8),
            storage=_url(options),
            study=options.study or "search",
            space=space.typed,
            pruner=options.pruner,
            prune_after_trials=options.prune_after_trials,
            prune_after_steps=_first_steps(config),
            max_steps=_max_steps(config),
        )
    if search.storage != _url(options):  # not the user's, then
        typed = f"sweep.storage={options.storage}" if options.storage else f"the sweep's own {layout.STUDY}"
        raise UsageError(f"{folder / layout.SEARCH}: it names another database than {typed}: start the sweep anew")
    if search.space != space.typed:
        raise UsageError(f"the sweep {folder} searches {_spelled(search.space)}, not {_spelled(space.typed)}")
    trials: Trials
    sampler = open_sampler(options.sampler, options.seed, space, lambda trial: trials.place(trial))
    trials = Trials(folder, search, sampler)
    trials.agree(space.job({key: f"<{values}>" for key, values in space.typed.items()}))
    if new:
        write_search(folder, search)
    return trials


class SearchRun:
    """Runs a search, or goes on with one whose process has ended, however it did.

    Args:
        folder: the folder of the sweep, with its plan.
        config: the configuration of the sweep.
        space: what is searched.
        trials: the trials of the search.
        launch: launches jobs.

    Attributes:
        most: number of trials, of all sweeps that share the study.
    """

    def __init__(self, folder: Path, config: DictConfig, space: "SearchSpace", trials: Trials, launch: Launch):
        self._folder, self._config, self._space, self._trials, self._launch = folder, config, space, trials, launch
        self._options: SearchOptions = config.sweep
        grid = space.size if self._options.sampler == "grid" else None
        self.most = min(self._options.trials, grid or self._options.trials)
        plan = read_plan(folder)
        self._jobs = list(plan.jobs) if plan else []

    def run(self) -> None:
        """Launch jobs until there are as many trials as were asked for.

        A job that fails does not end the search, but several in a row that fail for the same reason do: with one value
        mistyped, all would.
        """
        waiting = self._left_behind()
        failures: list[str] = []
        while True:
            batch = waiting[: self._at_once()] or self._new_jobs()
            waiting = waiting[self._at_once() :]
            if not batch:
                return
            for first, last in _consecutive(batch):
                self._launch(as_launched(self._jobs[first : last + 1], self._config), first)
            for job in self._tell(batch):
                if job.outcome.status in ("interrupted", "terminated"):  # in a process of its own
                    return
                reason = job.outcome.reason.replace(str(job.folder), "") if job.outcome.status == "failed" else ""
                failures = [*failures, reason] if reason and reason in failures[-1:] else [reason] * bool(reason)
            if self._options.max_failures is not None and len(failures) >= self._options.max_failures:
                print_error(
                    f"{len(failures)} trials in a row failed for the same reason, the search ends: "
                    f"{job.outcome.reason}; when that is mended, go on with "
                    f"{resume_command(layout.TRAIN, self._folder)} {RETRY_FAILED}=true"
                )
                return

    def _left_behind(self) -> list[int]:
        """Return the jobs of an earlier process that have to begin or to go on; tell the others how they ended."""
        own = sorted(self._trials.of_jobs().items())
        for number, trial in own:  # of those that did not get as far as the plan
            if number >= len(self._jobs) and not self._trials.discard_surplus(trial, self.most):
                self._add(trial)
        numbers = [number for number, trial in own if number < len(self._jobs) and trial.state.name == "RUNNING"]
        self._tell(numbers)
        if self._options.retry_failed:
            failed = {job.number for job in read_jobs(self._folder) if job.outcome.status == "failed"}
            for number, trial in self._trials.of_jobs().items():
                if number in failed and trial.state.name == "FAIL":
                    self._trials.repeat(trial)
        return [n for n, trial in sorted(self._trials.of_jobs().items()) if trial.state.name == "RUNNING"]

    def _new_jobs(self) -> list[int]:
        """Make the trials of the next batch, and add their jobs to the plan."""
        numbers = []
        for _ in range(self._at_once()):
            trial = self._trials.add(len(self._jobs), self.most)
            if trial is None:
                break
            numbers.append(len(self._jobs))
            self._add(trial)
        return numbers

    def _add(self, trial: "FrozenTrial") -> None:
        self._jobs.append(self._space.job(self._trials.choose(trial, self._space.distributions)))
        store_jobs(self._folder, self._jobs, self._config)

    def _tell(self, numbers: Sequence[int]) -> list[SweepJob]:
        jobs, own = read_jobs(self._folder), self._trials.of_jobs()
        for number in numbers:
            self._trials.tell(own[number], jobs[number].outcome)
        return [jobs[number] for number in numbers]

    def _at_once(self) -> int:
        """Return how many jobs are started together: what the launcher runs at once, unless a number was given."""
        if self._options.jobs is not None:
            return self._options.jobs
        most = OmegaConf.select(self._config, "hydra.launcher.n_jobs")
        if not isinstance(most, int) or most == 0:
            return 1
        return most if most > 0 else max(1, (os.cpu_count() or 1) + 1 + most)  # joblib counts from the last core


def _consecutive(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and the last of each run of consecutive numbers."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _url(options: SearchOptions) -> str | None:
    """Return the URL of the database; None for the file in the sweep folder."""
    if options.storage is None:
        return None
    if options.study is None:
        raise UsageError(f"sweep.storage={options.storage}: name the study there with sweep.study=<name>")
    if "://" not in options.storage:
        return f"sqlite:///{Path(options.storage).expanduser().absolute()}"
    scheme, _, path = options.storage.partition(":///")
    relative = scheme.startswith("sqlite") and path and not path.startswith("/")
    return f"{scheme}:///{Path(path).absolute()}" if relative else options.storage


def _max_steps(config: DictConfig) -> int | None:
    steps = OmegaConf.select(config, "trainer.max_steps")
    return steps if isinstance(steps, int) and steps > 0 else None


def _first_steps(config: DictConfig) -> int:
    """Return the steps before which no training is stopped: early ones say little while the learning rate rises."""
    given, most = config.sweep.prune_after_steps, _max_steps(config)
    if given is not None:
        return int(given)
    if config.sweep.pruner == "median" and most is not None:
        return most // 4
    return int(OmegaConf.select(config, "trainer.val_every_steps") or 0)


def _spelled(typed: dict[str, str]) -> str:
    return " ".join(f"{key}={values}" for key, values in typed.items())
