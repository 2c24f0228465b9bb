"""The page of the report: one HTML file that loads nothing from elsewhere."""

import json
import os
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bokeh.resources import Resources
from markupsafe import Markup

from lipformer.report.charts import draw_charts, empty_chart, extent
from lipformer.report.environment import environment, shown
from lipformer.report.heat_maps import draw_heat_maps, empty_heat_map
from lipformer.report.style import run_style
from lipformer.report.tables import NO_STATUS, certificate_table, differences_today, facts, runs_table, short
from lipformer.runs import layout
from lipformer.runs.differences import environment_differences, flat_config
from lipformer.runs.metric_names import STABILITY
from lipformer.runs.plain_files import read_overrides
from lipformer.runs.record import RunRecord, name_runs
from lipformer.system.text import visible
from lipformer.version import __version__

FILES = (
    layout.METRICS_CSV,
    layout.METRICS_JSON,
    layout.CONFIG,
    layout.ENVIRONMENT,
    layout.STATUS,
    layout.SAMPLES,
    layout.CERTIFICATE,
    layout.log_file(layout.TRAIN),
    *(f"{layout.CHECKPOINTS}/{name}" for name in (layout.BEST, layout.LAST, layout.PREVIOUS)),
    layout.BAD_BATCH,
)
"""Files of a run that a reader may want, linked in its page."""
SAMPLED = ("step", "tokens", "temperature", "seed")
BOKEH = Resources(mode="inline", components=["bokeh"])
"""The core of BokehJS alone: its widgets, tables and formulas are not used, and are larger than the core."""


def render(records: Sequence[RunRecord], folder: Path) -> str:
    """Return the page as HTML.

    Everything that comes from a run folder is escaped: whatever a name, a reason or a sample contains, none of it acts
    as markup.

    Args:
        records: the runs, at least one.
        folder: the folder of the page; the files of a run whose folder this is are linked.
    """
    names = [visible(name) for name in name_runs(records)]
    charts, heat_maps = draw_charts(records, names), draw_heat_maps(records)
    ends = extent(records)
    data = {
        "runs": [{"name": name, **run_style(number)} for number, name in enumerate(names)],
        "extent": ends,
        "charts": [{key: chart[key] for key in ("log", "curves")} for chart in charts],
        "heatMaps": [{key: heat_map[key] for key in ("log", "scale", "runs")} for heat_map in heat_maps],
        "empty": {
            name: {str(log).lower(): empty(log=log) for log in {part["log"] for part in parts}}
            for name, parts, empty in (("chart", charts, empty_chart), ("heatMap", heat_maps, empty_heat_map))
        },
    }
    certificates = [certificate_table(record, number) for number, record in enumerate(records)]
    return (
        environment()
        .get_template("report.html.jinja")
        .render(
            version=__version__,
            made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
            title=names[0] if len(records) == 1 else f"{len(records)} runs",
            runs=[
                _run(record, name, number, folder)
                for number, (record, name) in enumerate(zip(records, names, strict=True))
            ],
            statuses=Counter(record.status for record in records),
            columns=runs_table(records, names) if len(records) > 1 else [],
            charts=charts,
            units=[unit for unit in ("tokens", "steps") if ends[unit] > 0],
            heat_maps=heat_maps,
            certificates=[table for table in certificates if table is not None],
            no_telemetry=_why_no_telemetry(records),
            differences=differences_today(records),
            environment_differences=environment_differences(records),
            short=short,
            data=embed_json(data),
            bokeh=Markup("\n".join(BOKEH.js_raw)),
        )
    )


def embed_json(data: Any) -> Markup:
    """Return data as JSON for a script element; no string in it can end the element or begin a comment."""
    return Markup(json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"))


def _run(record: RunRecord, name: str, number: int, folder: Path) -> dict[str, Any]:
    samples = record.samples or {}
    sentences = samples.get("sentences")
    return {
        "number": number,
        "name": name,
        "status": record.status,
        "reason": record.outcome.reason if record.outcome else NO_STATUS,
        "facts": facts(record),
        "style": run_style(number),
        "sentences": [str(sentence) for sentence in sentences] if isinstance(sentences, list) else [],
        "samples": {key: f"{samples[key]:,}" for key in SAMPLED if isinstance(samples.get(key), int | float)},
        "config": flat_config(record.config),
        "environments": [flat_config(asdict(each)) for each in reversed(record.environments)],
        "folder": shown(record.folder),
        "address": "",
        "links": _links(record.folder) if record.folder.absolute() == folder.absolute() else [],
        "commands": _commands(record.folder),
    }


def _why_no_telemetry(records: Sequence[RunRecord]) -> str:
    """Return why no run has metrics of stability; an empty string where one has."""
    if any(name.startswith(f"{STABILITY}/") for record in records for name in record.series):
        return ""
    callbacks = [record.config.get("callbacks") for record in records]
    if all(isinstance(callback, dict) and "stability" not in callback for callback in callbacks):
        return "no telemetry: callbacks=none"
    return f"no telemetry in {layout.METRICS_CSV}: the training ended before its first row, or is of an earlier version"


def _links(folder: Path) -> list[tuple[str, str]]:
    """Return the name and the address, relative to the folder, of each file that a reader may want to open."""
    there = [folder / name for name in FILES if os.path.isfile(folder / name)]
    there += sorted(path for path in (folder / layout.FIGURES).glob("*") if path.suffix in (".png", ".pdf"))
    relative = [path.relative_to(folder).as_posix() for path in there]
    return [(path, quote(os.fsencode(path))) for path in relative]


def _commands(folder: Path) -> list[str]:
    place = shlex.quote(shown(folder))
    commands = []
    overrides = read_overrides(folder / layout.OVERRIDES)
    if overrides is not None:
        commands.append(shlex.join(["python", "train.py", *overrides]))
    if os.path.isdir(folder / layout.CHECKPOINTS):
        commands.append(f"python evaluate.py checkpoint={place} split=test")
        commands.append(f"python train.py resume={place}")
    return commands
