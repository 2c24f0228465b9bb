"""The table at the end of a training run: what it reached, and how stable it was."""

import math
from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from lipformer.runs.folder import local_rank
from lipformer.system.terminal import BAD, STATUS_STYLES, wide_console
from lipformer.tasks import Task
from lipformer.training.callbacks.throughput import clock


def print_summary(
    metrics: Mapping[str, Any], latest: Mapping[str, float], task: Task, progress: str, status: str | None = None
) -> None:
    """Print `summary_table`, on the first rank, unless nothing is to be shown.

    Args:
        metrics: as in ``metrics.json``.
        latest: the last value of each metric of stability.
        task: names the metrics.
        progress: ``trainer.progress``; with ``none`` nothing is printed.
        status: how the run ended.
    """
    if progress == "none" or local_rank() != 0:
        return
    try:
        wide_console().print(summary_table(metrics, latest, task, status))
    except SystemExit as leave:  # rich's answer to a pipe that nobody reads any more; the training has not failed
        if leave.code != 1:
            raise


def summary_table(
    metrics: Mapping[str, Any], latest: Mapping[str, float], task: Task, status: str | None = None
) -> Table:
    """Lay out a run's figures, one a row; of what is missing or no number there is no row.

    Args:
        metrics: flat names as in ``metrics.json``.
        latest: the last value of each metric of stability, ``stability/<layer>/<quantity>`` and
            ``certificate/<layer>/<p>``; empty where nothing was watched.
        task: names the metrics.
        status: how the run ended, as `Outcome` has it; no row if None.
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
    for name in ("steps", "tokens", "parameters"):
        count = _finite(metrics, name)
        if count is not None:
            rows.append((name, Text(f"{count:,.0f}")))
    seconds, rate = _finite(metrics, "seconds"), _finite(metrics, "tokens_per_second")
    if seconds is not None:
        rows.append(("time", Text(f"{clock(seconds)}{'' if rate is None else f'  {rate:,.0f} tokens/s'}")))
    telemetry = _finite(metrics, "stability/seconds")
    if telemetry is not None and seconds:
        rows.append(("of it telemetry", Text(f"{telemetry / seconds:.1%}  {telemetry:,.1f} s")))
    return rows


def _stability(latest: Mapping[str, float]) -> list[tuple[str, Text]]:
    rows = []
    shares = _by_layer(latest, "entropy_share")
    if shares:
        layer = min(shares, key=shares.__getitem__)
        rows.append(("lowest attention entropy", Text(f"{shares[layer]:.1%} of log n  {layer}")))
    total, norms = _number(latest, "stability/total/gradient_norm"), _by_layer(latest, "gradient_norm")
    if total is not None:
        rows.append(("gradient norm", Text(f"{total:.3g}")))
    if norms:
        layer = max(norms, key=norms.__getitem__)
        rows.append(("largest of a layer", Text(f"{norms[layer]:.3g}  {layer}")))
    for name in latest:
        match name.split("/"):
            case ["certificate", "trunk", p]:
                bound = _number(latest, name)
                if bound is not None:
                    style = BAD if math.isinf(bound) else ""
                    rows.append((f"trunk certificate, {p}", Text(f"{bound:.4g}", style=style)))
    local = _number(latest, "stability/trunk/local_lipschitz")
    if local is not None:
        rows.append(("trunk, measured", Text(f"{local:.4g}")))
    return rows


def _by_layer(latest: Mapping[str, float], quantity: str) -> dict[str, float]:
    """Return a quantity of each layer, the total left out."""
    found = {}
    for name in latest:
        match name.split("/"):
            case ["stability", layer, last] if last == quantity and layer != "total":
                value = _number(latest, name)
                if value is not None:
                    found[layer] = value
    return found


def _number(metrics: Mapping[str, Any], name: str) -> float | None:
    """Return a metric that is a number, inf too; None for any other."""
    try:
        value = float(metrics[name])
    except (KeyError, TypeError, ValueError):
        return None
    return None if math.isnan(value) else value


def _finite(metrics: Mapping[str, Any], name: str) -> float | None:
    value = _number(metrics, name)
    return value if value is not None and math.isfinite(value) else None
