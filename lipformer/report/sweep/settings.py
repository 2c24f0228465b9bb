"""The settings of a sweep for its page: the map of the scores, and their mean and spread over the seeds."""

from collections.abc import Sequence
from typing import Any

from lipformer.report.tables import Cell, Column, fixed, value_cell, whole
from lipformer.runs.swept import (
    SEED,
    Key,
    Setting,
    SweptJob,
    choose_axes,
    colour_ends,
    mapped_keys,
    settings_of,
    swept_keys,
)
from lipformer.system.text import visible
from lipformer.tasks import Task

MOST_TOLD = 8
"""The largest number of jobs of a setting that are described one by one."""
LOST = ("diverged", "failed", "pruned")
"""The statuses of jobs that ended without a score that can be averaged."""
LONGEST = 200
"""The largest number of characters of a reason in the map; the table has all of it."""


def mapped_task(jobs: Sequence[SweptJob], task: Task) -> dict[str, Any] | None:
    """Return the map of the jobs of one task for the script of the page; None where nothing was swept.

    Returns:
        ``unit``; ``keys``, the numbers of the keys that can be axes, among those of the whole sweep; ``axes``, those
        chosen at first, numbers among these; ``ends``, the values of the first and last colour, and whether some lie
        above; ``settings``, the best first: each with ``at`` (the number of its value for each key), ``value``,
        ``text``, ``state``, ``low``, ``high``, ``scores``, ``counts`` and ``told``, what is said of it.
    """
    every = swept_keys([job.job for job in jobs])
    keys = mapped_keys(every)
    settings = settings_of([job for job in jobs if job.job.task == task], keys)
    if not keys or not settings:
        return None
    axes = choose_axes(keys)
    best = settings[0] if settings[0].scores else None
    return {
        "task": task.name,
        "unit": task.objective.long,
        "keys": [every.index(key) for key in keys],
        "axes": [axes.x, axes.y, axes.panel],
        "ends": colour_ends(settings),
        "settings": [_setting(setting, keys, task, best=setting is best) for setting in settings],
    }


def _setting(setting: Setting, keys: Sequence[Key], task: Task, *, best: bool) -> dict[str, Any]:
    return {
        "at": list(setting.at),
        "value": setting.value,
        "text": "" if setting.value is None else fixed(setting.value).text,
        "state": setting.state,
        "scores": setting.scores,
        "counts": dict(setting.counts),
        "total": len(setting.jobs),
        "best": best,
        "told": _told(setting, keys, task),
    }


def _told(setting: Setting, keys: Sequence[Key], task: Task) -> list[tuple[str, str]]:
    """Return what is said of a setting: pairs of a label and a text."""
    told = [(key.name, key.values[value] or "–") for key, value in zip(keys, setting.at, strict=True)]
    if setting.value is not None:
        scores = [f"{fixed(measure.of(setting.value)).text} {measure.short}" for measure in task.measures]
        told.append(("best valid", " = ".join(scores)))
    if setting.deviation is not None:
        low, high = min(setting.scores), max(setting.scores)
        told.append(("spread", f"{fixed(low).text} … {fixed(high).text}, sd {setting.deviation:.2g}"))
    if words := setting.in_words():
        told.append(("of", words))
    for job in setting.jobs[:MOST_TOLD]:
        parts = [job.status, job.job.outcome.reason[:LONGEST]]
        if job.score is not None and job.status != "finished":
            parts.append(f"best before: {fixed(job.score).text}")
        elif job.score is not None and len(setting.jobs) > 1:
            parts[0] = fixed(job.score).text
        told.append((f"job {job.job.name}", "; ".join(part for part in parts if part)))
    if len(setting.jobs) > MOST_TOLD:
        told.append(("", f"and {len(setting.jobs) - MOST_TOLD} more jobs"))
    return [(visible(label), visible(text)) for label, text in told]


def spread_table(jobs: Sequence[SweptJob], task: Task) -> dict[str, Any] | None:
    """Return the table of mean and spread over the seeds, the best setting first; None where no setting has two jobs.

    Jobs that diverged or failed have columns of their own: they are in no mean, and are not lost.
    """
    keys = [key for key in swept_keys([job.job for job in jobs]) if key.name != SEED and len(key.values) > 1]
    settings = settings_of([job for job in jobs if job.job.task == task], keys)
    if all(len(setting.jobs) < 2 for setting in settings):
        return None
    columns = [
        Column(visible(key.name), [value_cell(key.name, visible(key.values[s.at[place]])) for s in settings])
        for place, key in enumerate(keys)
    ]
    columns += [
        Column("n", [whole(len(s.scores)) for s in settings], "jobs that finished, which the mean is of"),
        *(
            Column(f"mean {m.unit}", [fixed(None if s.mean is None else m.of(s.mean)) for s in settings], m.long)
            for m in task.measures
        ),
        Column("sd", [fixed(s.deviation) for s in settings], f"standard deviation of the {task.objective.unit}, n - 1"),
        Column("min", [fixed(min(s.scores, default=None)) for s in settings], task.objective.long),
        Column("max", [fixed(max(s.scores, default=None)) for s in settings], task.objective.long),
        *(
            Column(status, [_count(s, s.counts[status]) for s in settings])
            for status in LOST
            if any(setting.counts[status] for setting in settings)
        ),
        Column("to come", [_count(s, _to_come(s)) for s in settings], "waiting, running or stopped"),
    ]
    return {"task": task.name, "columns": columns, "rows": range(len(settings))}


def _to_come(setting: Setting) -> int:
    return sum(count for status, count in setting.counts.items() if status not in ("finished", *LOST))


def _count(setting: Setting, count: int) -> Cell:
    return Cell(f"{count} of {len(setting.jobs)}" if count else "0", count)
