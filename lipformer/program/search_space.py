"""What is searched: the values on the command line, in Hydra's own grammar, as distributions of Optuna."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from lipformer.errors import UsageError


@dataclass(frozen=True)
class SearchSpace:
    """The overrides of a search: some are the same in all jobs, of the others each job has values of its own.

    Attributes:
        overrides: key -> the override, or its distribution, in the order typed. A key is written as it is typed, with
            ``+`` or ``++`` before it.
        typed: key -> the values as they were typed, of what is searched.
    """

    overrides: dict[str, str | BaseDistribution]
    typed: dict[str, str]

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """What is searched: key -> distribution."""
        return {key: value for key, value in self.overrides.items() if isinstance(value, BaseDistribution)}

    @property
    def size(self) -> int | None:
        """Number of combinations; None if an interval of floats makes it infinite."""
        size = 1
        for distribution in self.distributions.values():
            points = grid_of(distribution)
            if points is None:
                return None
            size *= len(points)
        return size

    def job(self, values: Mapping[str, Any]) -> list[str]:
        """Return the overrides of the job with these values of what is searched."""
        return [value if isinstance(value, str) else f"{key}={values[key]}" for key, value in self.overrides.items()]

    def samples(self) -> list[list[str]]:
        """Return the overrides of some jobs in which each choice occurs, and each number's lowest and highest."""
        ends = {key: _ends(distribution) for key, distribution in self.distributions.items()}
        longest = max(map(len, ends.values()))
        return [self.job({key: some[n % len(some)] for key, some in ends.items()}) for n in range(longest)]


def read_space(params: Mapping[str, Any], arguments: Sequence[str], loader: ConfigLoader | None = None) -> SearchSpace:
    """Return the search space of a command line.

    ``a,b`` and ``choice(a,b)`` are choices without order, ``range(2,9)`` are numbers in order, ``interval(0,1)`` is
    continuous and ``int(interval(2,12))`` whole, both ends included; ``tag(log, ...)`` searches by magnitude.

    Args:
        params: key -> values in the same grammar, from a YAML; the command line overrides them.
        arguments: the overrides that were typed.
        loader: lists the choices of a group, for ``glob``.

    Raises:
        HydraException: an override is not in Hydra's grammar.
        UsageError: a search cannot draw from the values, or there is nothing to search.
    """
    texts = [*(f"{key}={values}" for key, values in params.items()), *arguments]
    overrides: dict[str, str | BaseDistribution] = {}
    typed: dict[str, str] = {}
    for override in OverridesParser.create(loader).parse_overrides(texts):
        key = override.get_key_element()
        typed.pop(key, None)
        if override.is_sweep_override():
            overrides[key] = _distribution(override)
            typed[key] = override.get_value_string()
        else:
            overrides[key] = key if override.is_delete() and override.value_type is None else _fixed(key, override)
    if not typed:
        raise UsageError("nothing to search: give a key several values, such as 'lr=tag(log, interval(1e-5,1e-2))'")
    return SearchSpace(overrides, typed)


def grid_of(distribution: BaseDistribution) -> list[Any] | None:
    """Return all values of a distribution, in order; None if it is continuous."""
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    if distribution.step is None:
        return None
    count = round((distribution.high - distribution.low) / distribution.step)
    return [distribution.low + n * distribution.step for n in range(count + 1)]


def _ends(distribution: BaseDistribution) -> list[Any]:
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return [distribution.low, distribution.high]


def _fixed(key: str, override: Override) -> str:
    return f"{key}={override.get_value_element_as_str()}"


def _distribution(override: Override) -> BaseDistribution:
    values: Any = override.value()
    text = override.input_line
    if unknown := sorted(set(getattr(values, "tags", ())) - {"log"}):
        raise UsageError(f"{text}: tag({unknown[0]}, ...) means nothing to a search; it knows tag(log, ...)")
    log = "log" in getattr(values, "tags", ())
    if override.is_choice_sweep():
        if log:
            raise UsageError(f"{text}: tag(log, ...) needs an interval or a range; choices have no order")
        # As texts: 1, 1.0 and true would be one choice.
        return CategoricalDistribution(list(dict.fromkeys(override.sweep_string_iterator())))
    if isinstance(values, IntervalSweep):
        low, high = values.start, values.end
        step: Any = None if isinstance(low, float) else 1
    else:
        assert isinstance(values, RangeSweep)
        points = sorted(values.range())
        if not points:
            raise UsageError(f"{text}: the range is empty")
        low, high, step = points[0], points[-1], abs(values.step)
        if isinstance(values.step, float) or isinstance(values.start, float):
            low, high, step = float(low), float(high), float(step)
        if log and (isinstance(step, float) or step != 1):
            raise UsageError(f"{text}: tag(log, ...) needs an interval, or a range of whole numbers in steps of 1")
    if low is None or high is None or low > high or (log and low <= 0):
        wanted = "above 0, in ascending order" if log else "in ascending order"
        raise UsageError(f"{text}: the ends must be {wanted}")
    if log and isinstance(low, float):
        return FloatDistribution(low, high, log=True)
    kind: Any = FloatDistribution if isinstance(low, float) else IntDistribution
    return kind(low, high, log=log, step=step)
