"""The page of a sweep: one HTML file that loads nothing from elsewhere."""

import os
import shlex
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bokeh.palettes import Viridis256
from markupsafe import Markup

from lipformer.report.charts import draw_losses, empty_chart, extent
from lipformer.report.environment import environment, shown
from lipformer.report.page import BOKEH, embed_json
from lipformer.report.style import DASHES, run_style, value_colours
from lipformer.report.sweep.rows import REASON, SweepColumn
from lipformer.report.sweep.settings import mapped_task, spread_table
from lipformer.report.tables import Column, fixed, short
from lipformer.runs import layout
from lipformer.runs.outcome import FINAL
from lipformer.runs.sweep import read_plan, resume_command
from lipformer.runs.swept import SEED, Key, Setting, SweptJob, settings_of, split_override, swept_keys, values_of
from lipformer.system.text import visible
from lipformer.tasks import Task
from lipformer.version import __version__

MOST_CURVES = 100
"""The largest number of jobs whose curves are in the page: the best ones."""
FEW_CURVES = 12
"""With more jobs than this the curves on the training text are hidden at first."""
STOPS = 32
"""The number of colours of the map."""


def render(jobs: Sequence[SweptJob], columns: Sequence[SweepColumn], sweep: Path, into: Path) -> str:
    """Return the page as HTML; everything that comes from a folder is escaped.

    Args:
        jobs: the jobs of the sweep, in order.
        columns: their table, as `lipformer.report.sweep.rows.columns_of` returns it.
        sweep: the folder of the sweep, for commands.
        into: the folder of the page, for links.
    """
    keys = swept_keys([job.job for job in jobs])
    tasks = list(dict.fromkeys(job.job.task for job in jobs))
    maps = [found for task in tasks if (found := mapped_task(jobs, task)) is not None]
    names = [_name(job, keys) for job in jobs]
    charts, drawn = _charts(jobs, tasks, names)
    statuses = Counter(job.status for job in jobs)
    with_curves = {curve["run"] for chart in charts for curve in chart["curves"]}
    ends = extent([job.record for job in jobs if job.record is not None])
    data = {
        "runs": [{"name": name, **run_style(number)} for number, name in enumerate(names)],
        "extent": ends,
        "charts": [{key: chart[key] for key in ("log", "curves")} for chart in charts],
        "heatMaps": [],
        "empty": {"chart": {str(log).lower(): empty_chart(log=log) for log in {chart["log"] for chart in charts}}},
        "sweep": {
            "keys": [_key(key) for key in keys],
            "at": [_places(job, keys) for job in jobs],
            "curves": sorted(with_curves),
            "diverged": [number for number, job in enumerate(jobs) if job.status == "diverged"],
            "pale": len(with_curves) <= FEW_CURVES,
            "dashes": [list(dash) for dash in DASHES],
            "maps": maps,
            "stops": [Viridis256[round(place * 255 / (STOPS - 1))] for place in range(STOPS)],
        },
    }
    return (
        environment()
        .get_template("sweep.html.jinja")
        .render(
            version=__version__,
            made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
            title=f"Sweep {visible(sweep.absolute().name)}",
            runs=[_row(job, number, into) for number, job in enumerate(jobs)],
            statuses=statuses,
            done=sum(count for status, count in statuses.items() if status in FINAL),
            best=[found for task in tasks if (found := _best(jobs, keys, task)) is not None],
            going_on=_going_on(sweep, statuses),
            columns=_shown_columns(columns),
            charts=charts,
            drawn=drawn,
            units=[unit for unit in ("tokens", "steps") if ends[unit] > 0],
            few_dashes=len(DASHES),
            keys=[key for key in keys if len(key.values) > 1],
            maps=maps,
            spreads=[table for task in tasks if (table := spread_table(jobs, task)) is not None],
            data=embed_json(data),
            bokeh=Markup("\n".join(BOKEH.js_raw)),
            csv=layout.SWEEP_CSV,
            short=short,
        )
    )


def _charts(jobs: Sequence[SweptJob], tasks: Sequence[Task], names: Sequence[str]) -> tuple[list[dict[str, Any]], str]:
    """Return a chart of the losses for each task with curves, and a sentence about the jobs that are left out."""
    having = [number for number, job in enumerate(jobs) if job.record is not None and job.record.series]
    best = sorted(having, key=lambda n: (jobs[n].score is None, jobs[n].score or 0.0, n))[:MOST_CURVES]
    chosen = sorted(best)
    charts = []
    for number, task in enumerate(tasks):
        mine = [n for n in chosen if jobs[n].job.task == task]
        records = [record for n in mine if (record := jobs[n].record) is not None]
        chart = draw_losses(task, records, [names[n] for n in mine])
        for curve in chart["curves"]:
            curve["run"] = mine[curve["run"]]
        if chart["curves"] or chart["notes"]:
            charts.append({"key": f"loss_{number}", **chart})
    left_out = len(having) - len(chosen)
    return charts, f"The curves are those of the best {MOST_CURVES} jobs of {len(having)}." if left_out else ""


def _name(job: SweptJob, keys: Sequence[Key]) -> str:
    told = [f"{key.name}={value}" for key, value in zip(keys, values_of(job.job, keys), strict=True) if value]
    return visible(" ".join([f"job {job.job.name}:", *told]) if told else f"job {job.job.name}")


def _key(key: Key) -> dict[str, Any]:
    """Return what the script of the page needs to know of a key."""
    return {
        "name": visible(key.name),
        "numeric": key.numeric,
        "values": [visible(value) or "–" for value in key.values],
        "places": key.places,
        "placeNames": [visible(name) for name in key.place_names],
        "colours": value_colours(len(key.values), ordered=key.numeric),
    }


def _places(job: SweptJob, keys: Sequence[Key]) -> list[int | None]:
    """Return the number of a job's value for each key."""
    found = zip(keys, values_of(job.job, keys), strict=True)
    return [None if value is None else key.values.index(value) for key, value in found]


def _row(job: SweptJob, number: int, into: Path) -> dict[str, Any]:
    page = job.job.folder / layout.REPORT
    address = quote(os.fsencode(os.path.relpath(page, into))) if os.path.isfile(page) else ""
    return {
        "number": number,
        "status": job.status,
        "reason": job.job.outcome.reason,
        "style": run_style(number),
        "address": address,
    }


def _shown_columns(columns: Sequence[SweepColumn]) -> list[Column]:
    """Return the columns of the page: the reason stands with the status, and those without a value are left out."""
    kept = [one.column for one in columns if one.name != REASON and (one.kind == "job" or not one.is_empty)]
    return list(kept)


def _best(jobs: Sequence[SweptJob], keys: Sequence[Key], task: Task) -> dict[str, Any] | None:
    """Return the best job of a task; where none finished, the best so far of those that did not diverge or fail."""
    mine = [job for job in jobs if job.job.task == task]
    scored = [job for job in mine if job.score is not None]
    finished = [job for job in scored if job.status == "finished"]
    others = [job for job in scored if job.status not in ("diverged", "failed")]
    if not (finished or others):
        return None
    best = min(finished or others, key=lambda job: job.score or 0.0)
    settings = settings_of(mine, [key for key in keys if key.name != SEED])
    setting = next((setting for setting in settings if best in setting.jobs), None)
    folder = best.job.folder
    place = shlex.quote(shown(folder))
    test = f"python evaluate.py checkpoint={place} split=test"
    return {
        "job": best.job.name,
        "scores": [(m.unit, m.long, fixed(m.of(best.score or 0.0)).text) for m in task.measures],
        "so_far": "" if finished else best.status,
        "setting": _over_seeds(setting, task) if setting is not None and len(setting.jobs) > 1 else "",
        "overrides": [split_override(override) for override in best.job.overrides],
        "command": test if os.path.isdir(folder / layout.CHECKPOINTS) else "",
    }


def _over_seeds(setting: Setting, task: Task) -> str:
    """Say what the mean over the seeds is, and of how many."""
    mean = "" if setting.mean is None else f"{fixed(setting.mean).text} {task.objective.short}, "
    return f"{mean}{setting.in_words()}"


def _going_on(sweep: Path, statuses: Counter[str]) -> list[tuple[str, str]]:
    """Return commands with which the sweep goes on, and what each of them does; none where it stored no plan."""
    plan = read_plan(sweep)
    if plan is None:
        return []
    resume = resume_command(plan.program, Path(shown(sweep)))
    found = []
    open_jobs = sum(count for status, count in statuses.items() if status not in FINAL)
    if open_jobs:
        found.append(("go on with the jobs that are left", resume))
    if statuses["failed"]:
        found.append(("repeat the failed ones too", f"{resume} sweep.retry_failed=true"))
    return found
