"""The figures of a sweep: a map of the scores over the swept keys, and the learning curves of its jobs."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lipformer.figures.axes import horizontal_axis
from lipformer.figures.learning import learning_limits
from lipformer.figures.quantities import finite, learning_curves
from lipformer.figures.style import GREY, LOOKS, PAGE, depth_colors, paper_style, save
from lipformer.figures.sweep_map import lines_of_settings, map_of_settings
from lipformer.runs import layout
from lipformer.runs.record import RunRecord
from lipformer.runs.swept import Key, SweptJob, choose_axes, mapped_keys, settings_of, swept_keys, values_of
from lipformer.tasks import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CURVES = 100
"""The largest number of jobs whose curves are drawn: the best ones."""
DASHES = tuple(look.dashes for look in LOOKS)
"""The dashes of the values of a key."""


def draw_sweep(jobs: Sequence[SweptJob], folder: Path) -> list[Path]:
    """Draw ``sweep_map`` and ``sweep_curves`` of each task, those of the second task on with its name added.

    Args:
        jobs: the jobs of the sweep.
        folder: the folder to write to; it is made if it does not exist.

    Returns:
        The files written, each figure as PNG and PDF; none where there is nothing to draw yet.
    """
    written = []
    keys = swept_keys([job.job for job in jobs])
    for number, task in enumerate(dict.fromkeys(job.job.task for job in jobs)):
        mine = [job for job in jobs if job.job.task == task]
        ending = f"_{task.name}" if number else ""
        with paper_style():
            if (drawn := _map(mine, keys, task)) is not None:
                written += save(drawn, folder / f"{layout.SWEEP_MAP}{ending}.png")
            if (drawn := _curves(mine, keys, task)) is not None:
                written += save(drawn, folder / f"{layout.SWEEP_CURVES}{ending}.png")
    return written


def _map(jobs: Sequence[SweptJob], every: Sequence[Key], task: Task) -> "Figure | None":
    """Draw the map, or lines where one key alone was swept; None where no job of the task has a score."""
    keys = mapped_keys(every)
    settings = settings_of(jobs, keys)
    if not keys or all(setting.value is None for setting in settings):
        return None
    axes = choose_axes(keys)
    draw = lines_of_settings if axes.y is None else map_of_settings
    return draw(settings, keys, axes, task)


def _curves(jobs: Sequence[SweptJob], keys: Sequence[Key], task: Task) -> "Figure | None":
    """Draw the curves on valid: one key has the colours, and another the dashes; None without curves."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    having = [job for job in jobs if job.record is not None and learning_curves(job.record).get("valid") is not None]
    having = sorted(having, key=lambda job: (job.score is None, job.score or 0.0))[:MOST_CURVES]
    records = [_valid_alone(job.record) for job in having if job.record is not None]
    if not records:
        return None
    horizontal = horizontal_axis(records)
    colour, dash = _styled(keys)
    figure = Figure(figsize=(PAGE, 3.4), layout="constrained")
    axes = figure.add_subplot()
    sound = [record for record in records if record.status != "diverged"]
    low, high = learning_limits(sound or records, horizontal)
    for job, record in zip(having, records, strict=True):
        series, tone = learning_curves(record)["valid"], _colour(colour, job)
        x, y = horizontal.of(series), finite(series.values)
        axes.plot(x, y, color=tone, linestyle=_dash(dash, job), linewidth=0.9, marker="o" if len(x) == 1 else "")
        if job.status == "diverged":
            last = np.flatnonzero(np.isfinite(y))[-1]
            axes.plot(
                x[last], min(y[last], high), clip_on=False, marker="x", markersize=5, markeredgewidth=1.2, color=tone
            )
    axes.set_ylim(low, high)
    horizontal.limit(axes)
    axes.set_xlabel(horizontal.label)
    axes.set_ylabel(f"{task.objective.long}, valid")
    handles = [Line2D([], [], color=tone) for tone in _tones(colour)] if colour else []
    handles += [Line2D([], [], color=GREY, linestyle=DASHES[i]) for i in range(len(dash.values))] if dash else []
    names = [f"{key.name} {value or '–'}" for key in (colour, dash) if key for value in key.values]
    if any(job.status == "diverged" for job in having):
        handles.append(Line2D([], [], color=GREY, marker="x", linestyle=""))
        names.append("diverged")
    if handles:
        columns = max(1, min(len(names), int(PAGE * 17 / (max(map(len, names)) + 9))))
        figure.set_size_inches(PAGE, 3.4 + 0.14 * math.ceil(len(names) / columns))
        figure.legend(handles, names, loc="outside lower center", ncols=columns)
    return figure


def _valid_alone(record: RunRecord) -> RunRecord:
    """Leave out the curve on train, which is not drawn, so that the axes are those of the other."""
    valid = record.task.metric("val")
    return replace(record, series={name: series for name, series in record.series.items() if name == valid})


def _styled(keys: Sequence[Key]) -> tuple[Key | None, Key | None]:
    """Return the keys that colours and dashes tell: that of the panels of the map first, then those of its axes."""
    mapped = mapped_keys(keys)
    axes = choose_axes(mapped)
    order = [mapped[i] for i in (axes.panel, axes.x, axes.y) if i is not None]
    few = [key for key in order if len(key.values) <= len(LOOKS)]
    colour = next(iter(few), next((key for key in order if key.numeric), None))
    return colour, next((key for key in few if key is not colour), None)


def _tones(key: Key) -> list[str]:
    """Return the colour of each value: from dark to light for three numbers or more, else those of runs."""
    count = len(key.values)
    if key.numeric and count > 2:
        return depth_colors(count)
    return [LOOKS[i % len(LOOKS)].color for i in range(count)]


def _place(key: Key, job: SweptJob) -> int | None:
    (value,) = values_of(job.job, [key])
    return None if value is None else key.values.index(value)


def _colour(key: Key | None, job: SweptJob) -> str:
    place = None if key is None else _place(key, job)
    return GREY if key is None or place is None else _tones(key)[place]


def _dash(key: Key | None, job: SweptJob) -> Any:
    place = None if key is None else _place(key, job)
    return "-" if place is None else DASHES[place % len(DASHES)]
