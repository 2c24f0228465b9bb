"""How the values of a search's trials are chosen; each trial's depend on the seed, its number and the trials before."""

from collections.abc import Callable, Mapping
from typing import Any

from numpy.random import SeedSequence
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from lipformer.errors import UsageError
from lipformer.program.search_space import SearchSpace, grid_of


def open_sampler(name: str, seed: int, space: SearchSpace, place: Callable[[FrozenTrial], int]) -> BaseSampler:
    """Return a sampler.

    Args:
        name: ``tpe``, ``random`` or ``grid``.
        seed: of its random numbers.
        space: what is searched.
        place: returns the number of trials that count before a trial.

    Raises:
        UsageError: a grid is asked for, but an interval is continuous.
    """
    if name == "grid":
        if space.size is None:
            endless = next(f"{key}={space.typed[key]}" for key, d in space.distributions.items() if grid_of(d) is None)
            raise UsageError(
                f"sweep.sampler=grid: {endless} is continuous: give values, a range, or int(interval(...))"
            )
        return _Grid(space.distributions, place)
    return _Seeded({"tpe": TPESampler, "random": RandomSampler}[name], seed)


class _Seeded(BaseSampler):
    """A sampler that begins anew for each trial, seeded by the trial's number.

    A search that is resumed thus goes on as if it had never stopped; a sampler with one stream of random numbers would
    draw those of the first trials again.
    """

    def __init__(self, kind: Callable[..., BaseSampler], seed: int):
        self._kind, self._seed = kind, seed
        self._sampler = kind(seed=seed)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._sampler = self._kind(seed=int(SeedSequence((self._seed, trial.number)).generate_state(1)[0]))
        self._sampler.before_trial(study, trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Any) -> None:
        self._sampler.after_trial(study, trial, state, values)


class _Grid(BaseSampler):
    """Every combination in turn, the last key fastest. (Optuna's own may draw one twice where processes share it.)"""

    def __init__(self, distributions: Mapping[str, BaseDistribution], place: Callable[[FrozenTrial], int]):
        self._points = {key: grid_of(distribution) or [] for key, distribution in distributions.items()}
        self._place = place

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        place = self._place(trial)
        for key, points in reversed(self._points.items()):
            place, here = divmod(place, len(points))
            if key == param_name:
                return points[here]
        raise KeyError(param_name)
