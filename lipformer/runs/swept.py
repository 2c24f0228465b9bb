"""What a sweep varied: its keys, and its jobs in settings, which are alike in all keys but the seed."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from lipformer.runs.readings import best_score, to_number
from lipformer.runs.record import RunRecord
from lipformer.runs.sweep import WAITING, SweepJob

SEED = "seed"
"""The key of repetitions: jobs that differ in it alone are one setting."""
FENCE = 4.0
"""How far above the median the scale of colours of a map goes, in units of the distance of the best value to it."""
MOST_PLACES = 12
"""The largest number of places of an axis; a key of numbers with more values has a place for each range of them."""


@dataclass(frozen=True)
class SweptJob:
    """A job of a sweep with what it measured.

    Attributes:
        job: the job.
        record: its run folder; None if there is none yet.
        numbers: what its run is told by in tables, by name.
    """

    job: SweepJob
    record: RunRecord | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """The status of the job, which may be ``waiting``."""
        return self.job.outcome.status

    @cached_property
    def score(self) -> float | None:
        """The task's objective, if finite: of a training the best on valid, of an evaluation that of its split."""
        score = self.job.outcome.best if self.record is None else best_score(self.record)
        return score if score is not None and math.isfinite(score) else None


@dataclass(frozen=True)
class Key:
    """A key that was swept.

    Attributes:
        name: as it was typed.
        values: as they were typed: numbers from the smallest on, others in the order of the jobs. ``""`` is that of a
            job without the key.
    """

    name: str
    values: list[str]

    @cached_property
    def numeric(self) -> bool:
        """Whether all values are finite numbers."""
        return _numeric(self.values)

    @cached_property
    def places(self) -> list[int]:
        """The place of each value on an axis."""
        count = len(self.values)
        if not self.numeric or count <= MOST_PLACES:
            return list(range(count))
        parts = np.array_split(np.arange(count), MOST_PLACES)
        return [place for place, part in enumerate(parts) for _ in part]

    @property
    def place_names(self) -> list[str]:
        """The name of each place of an axis: the value, or the ends of the range."""
        ranges: dict[int, list[str]] = {}
        for place, value in zip(self.places, self.values, strict=True):
            ranges.setdefault(place, []).append(value or "–")
        return [part[0] if len(part) == 1 else f"{part[0]} … {part[-1]}" for part in ranges.values()]


@dataclass(frozen=True)
class Axes:
    """Which keys a map of a sweep has as axes; all are numbers of keys.

    Attributes:
        x: the horizontal axis; None where nothing was swept.
        y: the vertical axis; None where it is the score.
        panel: the key that has a panel, or a line, for each value; None without.
    """

    x: int | None = None
    y: int | None = None
    panel: int | None = None


@dataclass(frozen=True)
class Setting:
    """The jobs of a sweep that differ in nothing but the seed.

    Attributes:
        at: for each key of the axes, the number of its value.
        jobs: the jobs.
    """

    at: tuple[int, ...]
    jobs: list[SweptJob]

    @cached_property
    def counts(self) -> Counter[str]:
        """How many jobs have each status."""
        return Counter(job.status for job in self.jobs)

    @cached_property
    def scores(self) -> list[float]:
        """The scores of the jobs that finished."""
        return [job.score for job in self.jobs if job.status == "finished" and job.score is not None]

    @property
    def mean(self) -> float | None:
        """The mean of the scores; None without any. Jobs that diverged or failed are not in it: `counts` has them."""
        return statistics.fmean(self.scores) if self.scores else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the scores, with n - 1; None with less than two."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    @property
    def so_far(self) -> float | None:
        """Where no job finished: the best score of the jobs that are on their way, or were stopped."""
        if self.scores:
            return None
        ways = [job.score for job in self.jobs if job.status not in ("diverged", "failed") and job.score is not None]
        return min(ways, default=None)

    @property
    def value(self) -> float | None:
        """The number that the setting is shown by: the mean, or else the best so far."""
        return self.so_far if self.mean is None else self.mean

    @property
    def state(self) -> str:
        """``scored``, ``so_far``, or why there is no score: ``diverged``, ``failed``, another status or ``waiting``."""
        if self.value is not None:
            return "so_far" if self.mean is None else "scored"
        worst = ("diverged", "failed", "running")
        others = [status for status in self.counts if status not in (*worst, WAITING)]
        return next(status for status in (*worst, *others, WAITING) if self.counts[status])

    @property
    def order(self) -> tuple[int, float]:
        """What settings are sorted by, the best first; with a job that diverged or failed later."""
        if self.value is None:
            return 3, {"diverged": 0.0, "failed": 1.0, WAITING: 3.0}.get(self.state, 2.0)
        broken = self.counts["diverged"] + self.counts["failed"] > 0
        return (2 if self.mean is None else int(broken)), self.value

    def in_words(self) -> str:
        """Say what the value is of, and what became of the other jobs, such as ``mean of 2 of 3 seeds; 1 diverged``."""
        total, told = len(self.jobs), len(self.scores)
        if total == 1:
            return f"best so far ({self.jobs[0].status})" if self.state == "so_far" else ""
        others = [f"{count} {status}" for status, count in self.counts.items() if status != "finished"]
        if told:
            lead = f"mean of {told} seeds" if told == total else f"mean of {told} of {total} seeds"
        else:
            lead = f"best so far of {total} seeds" if self.state == "so_far" else f"{total} seeds"
        return "; ".join([lead, *others])


def split_override(override: str) -> tuple[str, str]:
    """Return key and value of an override, both as typed; one without ``=``, such as ``~key``, has an empty value."""
    key, _, value = override.partition("=")
    return key, value


def swept_keys(jobs: Sequence[SweepJob]) -> list[Key]:
    """Return the keys in which the jobs' overrides differ, in the order in which they were typed.

    Jobs whose overrides are not known are left out of account. Of a single job all keys are returned.
    """
    typed = [dict(map(split_override, job.overrides)) for job in jobs if job.overrides]
    names = dict.fromkeys(name for overrides in typed for name in overrides)
    values = {name: list(dict.fromkeys(overrides.get(name, "") for overrides in typed)) for name in names}
    several = {name: found for name, found in values.items() if len(found) > 1 or len(typed) == 1}
    return [Key(name, sorted(found, key=float) if _numeric(found) else found) for name, found in several.items()]


def values_of(job: SweepJob, keys: Sequence[Key]) -> list[str | None]:
    """Return a job's value of each key; None where its overrides are not known."""
    typed = dict(map(split_override, job.overrides))
    return [typed.get(key.name, "") if typed else None for key in keys]


def mapped_keys(keys: Sequence[Key]) -> list[Key]:
    """Return the keys that a map can have as axes: those with several values, without the seed unless it is alone."""
    several = [key for key in keys if len(key.values) > 1]
    return [key for key in several if key.name != SEED] or several


def settings_of(jobs: Sequence[SweptJob], keys: Sequence[Key]) -> list[Setting]:
    """Return the jobs of one task by their values of `keys`, the best setting first.

    Jobs whose overrides are not known are left out.
    """
    found: dict[tuple[int, ...], list[SweptJob]] = {}
    for job in jobs:
        values = values_of(job.job, keys)
        if None not in values:
            at = tuple(key.values.index(str(value)) for key, value in zip(keys, values, strict=True))
            found.setdefault(at, []).append(job)
    settings = [Setting(at, members) for at, members in found.items()]
    return sorted(settings, key=lambda setting: (setting.order, setting.at))


def choose_axes(keys: Sequence[Key]) -> Axes:
    """Choose the axes of a map: the learning rate, the depth, and a panel for each attention, where they were swept.

    Otherwise numbers come before texts, and a key with more than `MOST_PLACES` texts has no panels.
    """
    numeric = [i for i, key in enumerate(keys) if key.numeric]
    texts = [i for i, key in enumerate(keys) if not key.numeric]

    def first(name: str, candidates: Sequence[int]) -> int | None:
        return next((i for i in candidates if keys[i].name == name), next(iter(candidates), None))

    x = first("lr", numeric or texts)
    y = first("depth", [i for i in numeric or texts if i != x])
    few = [i for i in (*texts, *numeric) if i not in (x, y) and len(keys[i].place_names) <= MOST_PLACES]
    return Axes(x, y, first("attention", few))


def cells_of(settings: Sequence[Setting], keys: Sequence[Key], axes: Axes) -> dict[tuple[int, int, int], list[Setting]]:
    """Return the settings of each cell (x, y, panel) of a map, the best one first.

    Args:
        settings: sorted, as `settings_of` returns them.
        keys: the keys of the settings.
        axes: of the map; the place on an axis that it does not have is 0.
    """
    cells: dict[tuple[int, int, int], list[Setting]] = {}
    for setting in settings:
        x, y, panel = (0 if i is None else keys[i].places[setting.at[i]] for i in (axes.x, axes.y, axes.panel))
        cells.setdefault((x, y, panel), []).append(setting)
    return cells


def colour_ends(settings: Sequence[Setting]) -> tuple[float, float, bool]:
    """Return the values of the first and last colour of a map, and whether some lie above the last.

    A few very large values would leave one colour to all others, so the scale ends at the latest where a value is
    `FENCE` times as far above the median as the best value is below it.
    """
    values = np.array([setting.value for setting in settings if setting.value is not None])
    if not len(values):
        return 0.0, 1.0, False
    low, middle, high = (float(found) for found in (values.min(), np.median(values), values.max()))
    fence = middle + FENCE * (middle - low)
    top = min(high, fence) if fence > low else high
    return (low, top, high > top) if top > low else (low - 0.5, low + 0.5, False)


def _numeric(values: Sequence[str]) -> bool:
    numbers = [to_number(value) for value in values]
    return all(number is not None and math.isfinite(number) for number in numbers)
