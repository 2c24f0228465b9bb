"""The study that saves a dashboard of stability in a wandb project, beside the one that wandb makes itself."""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lipformer.config import EvaluateConfig
from lipformer.errors import LipformerError, UsageError
from lipformer.options.study import WorkspaceOptions
from lipformer.runs import layout
from lipformer.runs.metric_names import TOKENS, TRAIN, VALID, metric_name
from lipformer.runs.quantities import SECTIONS, by_section, find_quantity
from lipformer.runs.quantity import REDUCTIONS, Quantity
from lipformer.system.atomic import replace_text
from lipformer.tasks import LANGUAGE
from lipformer.training.loggers.wandb_mode import first_line, has_credentials, no_reports_to_wandb

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Section, Workspace

log = logging.getLogger(__name__)

NAME = "lipformer: stability"
OPEN = ("Optimisation", "Attention")
"""Sections of quantities that are unfolded at the start."""


class WorkspaceStudy:
    """``study=workspace``: save the dashboard in a wandb project.

    Args:
        project: the name of the project.
        entity: the user or team that owns the project; None for the account's default.
    """

    def __init__(self, *, project: str = WorkspaceOptions.project, entity: str | None = WorkspaceOptions.entity):
        self.project, self.entity = project, entity

    def run(self, settings: EvaluateConfig, folder: Path) -> None:
        """Save the workspace, and log its address.

        Args:
            settings: the validated configuration.
            folder: of this evaluation; ``workspace.json`` with name, entity, project and URL is written there.

        Raises:
            UsageError: if the extra is not installed, or there is no API key.
            LipformerError: if the service does not answer, or refuses the workspace.
        """
        try:
            import wandb_workspaces.workspaces  # noqa: F401
        except ImportError as error:
            raise UsageError("study=workspace: not installed; pip install 'lipformer[workspace]'") from error
        with no_reports_to_wandb():
            if not has_credentials():
                raise UsageError("study=workspace: no API key; run `wandb login`")
            entity, url = _save(self.entity, self.project)
        note = {"name": NAME, "entity": entity, "project": self.project, "url": url}
        replace_text(folder / layout.WORKSPACE, json.dumps(note, indent=2) + "\n")
        log.info("workspace: %s", url)


def _save(entity: str | None, project: str) -> tuple[str, str]:
    import wandb

    try:
        entity = entity or wandb.Api().default_entity
        workspace = build_workspace(entity, project) if entity else None
        if workspace is not None:
            workspace.save()
            return workspace.entity, workspace.url
    except Exception as error:  # wandb, requests and the client's process raise many unrelated types
        remedy = f"check the key, the network and study.entity={entity or 'null'}"
        raise LipformerError(f"study=workspace: wandb did not take it: {first_line(error)}; {remedy}") from error
    raise UsageError("study=workspace: the account has no default entity; set study.entity=<user or team>")


def build_workspace(entity: str, project: str) -> "Workspace":
    """Return the dashboard, not yet saved; neither an API key nor a network is needed.

    Args:
        entity: the user or team that owns the project.
        project: the name of the wandb project.
    """
    from wandb_workspaces.workspaces import RunsetSettings, Workspace, WorkspaceSettings

    return Workspace(
        entity=entity,
        project=project,
        name=NAME,
        sections=_sections(),
        settings=WorkspaceSettings(x_axis=TOKENS),
        runset_settings=RunsetSettings(pinned_columns=[f"summary:{LANGUAGE.metric(VALID)}.min", "summary:status"]),
    )


def _sections() -> "list[Section]":
    """Return the sections: the objective, the sections of the catalogue, samples and figures, and the machine."""
    from wandb_workspaces.reports.v2 import BarPlot, MediaBrowser, WeavePanelSummaryTable
    from wandb_workspaces.workspaces import Section

    objective, valid = LANGUAGE.objective.long, LANGUAGE.metric(VALID)
    learning: list[Any] = [
        _lines(objective.capitalize(), valid, LANGUAGE.metric(TRAIN)),
        *(_lines(f"{m.long.capitalize()}, valid", metric_name(VALID, m.name)) for m in LANGUAGE.derived),
        BarPlot(title=f"Best {objective}, valid", metrics=[f"{valid}.min"]),
    ]
    figures = [f"{layout.FIGURES}/{name}" for name in (layout.LEARNING, layout.STABILITY)]
    samples: list[Any] = [
        WeavePanelSummaryTable(table_name="samples"),
        MediaBrowser(title="Figures", media_keys=figures, num_columns=len(figures)),
    ]
    machine: list[Any] = [
        _system("CPU, %", "system/cpu"),
        _system("Memory of the process, MB", "system/proc.memory.rssMB"),
        _system("GPU, %", "system/gpu.0.gpu"),
        _system("Memory of the GPU, %", "system/gpu.0.memoryAllocated"),
    ]
    return [
        Section(name="Learning", is_open=True, panels=learning),
        *(Section(name=name, is_open=name in OPEN, panels=_section(name)) for name in SECTIONS),
        Section(name="Samples", is_open=True, panels=samples),
        Section(name="System", panels=machine),
    ]


def _section(name: str) -> list[Any]:
    """Return the panels of the quantities of one section."""
    return [panel for quantity in by_section() if quantity.section == name for panel in _panels(quantity)]


def _panels(quantity: Quantity) -> list[Any]:
    """Return the panels of a quantity: one with the two metrics of its chart, if it has two, and one of all layers."""
    log_y, chart = quantity.scale != "linear", quantity.chart
    if not quantity.layers:
        return [_lines(quantity.title, quantity.metric(None), log_y=log_y)]
    panels = []
    if chart is not None and chart.pale is not None and not {chart.curve.layer, chart.pale.layer} & {*REDUCTIONS}:
        title = f"{chart.title or quantity.title}: {chart.curve.label}, {chart.pale.label}"
        curves = [(find_quantity(c.quantity or quantity.name), c.layer) for c in (chart.curve, chart.pale)]
        metrics = [row.metric(layer) for row, layer in curves]
        if any(row.is_pattern for row, _ in curves):
            panels.append(_lines(title, regex=f"^({'|'.join(metrics)})$", log_y=log_y))
        else:
            panels.append(_lines(title, *metrics, log_y=log_y))
    title = f"{quantity.title}, by layer"  # a regular expression finds the layers of runs of any depth
    panels.append(_lines(title, regex=f"^{quantity.group}/.*/{quantity.name}$", log_y=log_y))
    return panels


def _lines(title: str, *metrics: str, regex: str | None = None, log_y: bool = False) -> Any:
    """Return a panel of curves over the tokens seen."""
    from wandb_workspaces.reports.v2 import LinePlot

    return LinePlot(
        title=title, x=TOKENS, y=list(metrics), metric_regex=regex, title_x="tokens seen", log_y=log_y or None
    )


def _system(title: str, metric: str) -> Any:
    """Return a panel of what the machine does, which wandb records over time and not over tokens."""
    from wandb_workspaces.reports.v2 import LinePlot

    return LinePlot(title=title, x="RelativeTime(Process)", y=[metric])
