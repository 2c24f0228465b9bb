"""The table at the end of a training: its scores, what it cost, and how stable it was."""

import math
from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from lipformer.runs import quantities
from lipformer.runs.metric_names import PARAMETERS, SECONDS, STEPS, TELEMETRY_SECONDS, TOKENS_PER_SECOND, TOKENS_SEEN
from lipformer.runs.readings import latest_values, to_number
from lipformer.system.ranks import rank
from lipformer.system.terminal import BAD, STATUS_STYLES, wide_console
from lipformer.tasks import Task
from lipformer.training.callbacks.throughput import clock


def print_summary(
    metrics: Mapping[str, Any], latest: Mapping[str, float], task: Task, progress: str, status: str | None = None
) -> None:
    """Print `summary_table` on the first rank, unless ``trainer.progress`` is ``none``.

    Args:
        metrics: the contents of ``metrics.json``.
        latest: the last value of each metric of stability.
        task: the task, which names the metrics.
        progress: the option ``trainer.progress``.
        status: how the run ended.
    """
    if progress == "none" or rank() != 0:
        return
    try:
        wide_console().print(summary_table(metrics, latest, task, status))
    except SystemExit as leave:  # rich exits when nobody reads the pipe any more, but the training has not failed
        if leave.code != 1:
            raise


def summary_table(
    metrics: Mapping[str, Any], latest: Mapping[str, float], task: Task, status: str | None = None
) -> Table:
    """Return a table of a run's results, one in each row; results that are missing or not numbers have none.

    Args:
        metrics: the contents of ``metrics.json``.
        latest: the last value of each metric of stability and of each certificate; empty where nothing was watched.
        task: the task, which names the metrics.
        status: how the run ended, as in `Outcome`; None for no row about it.
    """
    table = Table(title="Training", show_header=False)
    table.add_column("what", no_wrap=True)
    table.add_column("value", overflow="fold")
    for section in (_reached(metrics, task, status), _spent(metrics), _stability(latest)):
        for what, value in section:
            table.add_row(what, value)
        table.add_section()
    return table


def _reached(metrics: Mapping[str, Any], task: Task, status: str | None) -> list[tuple[str, Text]]:
    rows = []
    if status:
        rows.append(("status", Text(status, style=STATUS_STYLES.get(status, ""))))
    for what, prefix in (("best valid", "best/val"), ("last valid", "val"), ("last train", "train")):
        score = _number(metrics, task.metric(prefix))
        if score is not None:
            rows.append((what, Text(task.describe(score))))
    return rows


def _spent(metrics: Mapping[str, Any]) -> list[tuple[str, Text]]:
    rows = []
    for name in (STEPS, TOKENS_SEEN, PARAMETERS):
        count = _finite(metrics, name)
        if count is not None:
            rows.append((name, Text(f"{count:,.0f}")))
    seconds, rate = _finite(metrics, SECONDS), _finite(metrics, TOKENS_PER_SECOND)
    if seconds is not None:
        rows.append(("time", Text(f"{clock(seconds)}{'' if rate is None else f'  {rate:,.0f} tokens/s'}")))
    telemetry = _finite(metrics, TELEMETRY_SECONDS)
    if telemetry is not None and seconds:
        rows.append(("of it telemetry", Text(f"{telemetry / seconds:.1%}  {telemetry:,.1f} s")))
    return rows


def _stability(latest: Mapping[str, float]) -> list[tuple[str, Text]]:
    rows = []
    for quantity in quantities.CATALOGUE:
        for value in quantity.summary:
            for title, number, layer in latest_values(latest, quantity, value):
                if not math.isnan(number):
                    spelled = f"{value.spelled.format(number)}  {layer}".rstrip()
                    rows.append((title, Text(spelled, style=BAD if math.isinf(number) else "")))
    return rows


def _number(metrics: Mapping[str, Any], name: str) -> float | None:
    """Return a metric if it is a number, which may be infinite; None if it is missing, nan or not a number."""
    number = to_number(metrics.get(name))
    return None if number is None or math.isnan(number) else number


def _finite(metrics: Mapping[str, Any], name: str) -> float | None:
    number = _number(metrics, name)
    return number if number is not None and math.isfinite(number) else None
