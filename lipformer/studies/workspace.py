"""A dashboard of stability in wandb, as code: saved as a view of a project, beside the one that wandb makes itself."""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lipformer.config import EvaluateConfig
from lipformer.errors import LipformerError, UsageError
from lipformer.options.study import WorkspaceOptions
from lipformer.runs.metric_names import TOKENS
from lipformer.system.atomic import replace_text
from lipformer.tasks import LANGUAGE
from lipformer.training.loggers.wandb_mode import first_line, has_credentials, no_reports_to_wandb

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Section, Workspace

log = logging.getLogger(__name__)

NAME = "lipformer: stability"
FIGURES = ("learning", "stability")
"""Names of the figures that a run draws of itself."""


class WorkspaceStudy:
    """``study=workspace``: the dashboard, saved in a wandb project.

    Args:
        project: its name.
        entity: user or team whose it is; None for the account's default.
    """

    def __init__(self, *, project: str = WorkspaceOptions.project, entity: str | None = WorkspaceOptions.entity):
        self.project, self.entity = project, entity

    def run(self, settings: EvaluateConfig, folder: Path) -> None:
        """Save the workspace, and say where it is.

        Args:
            settings: the validated configuration.
            folder: of this evaluation; gets ``workspace.json``: name, entity, project and URL.

        Raises:
            UsageError: the extra is not installed, or there is no API key.
            LipformerError: the service does not answer, or does not take the workspace.
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
        replace_text(folder / "workspace.json", json.dumps(note, indent=2) + "\n")
        log.info("workspace: %s", url)


def _save(entity: str | None, project: str) -> tuple[str, str]:
    import wandb

    try:
        entity = entity or wandb.Api().default_entity
        workspace = build_workspace(entity, project) if entity else None
        if workspace is not None:
            workspace.save()
            return workspace.entity, workspace.url
    except Exception as error:  # of many unrelated types: wandb's own, requests', those of the client's process
        remedy = f"check the key, the network and study.entity={entity or 'null'}"
        raise LipformerError(f"study=workspace: wandb did not take it: {first_line(error)}; {remedy}") from error
    raise UsageError("study=workspace: the account has no default entity; set study.entity=<user or team>")


def build_workspace(entity: str, project: str) -> "Workspace":
    """Lay the dashboard out; neither a key nor the network is needed for that.

    Args:
        entity: user or team.
        project: wandb project.
    """
    from wandb_workspaces.workspaces import RunsetSettings, Workspace, WorkspaceSettings

    return Workspace(
        entity=entity,
        project=project,
        name=NAME,
        sections=_sections(),
        settings=WorkspaceSettings(x_axis=TOKENS),
        runset_settings=RunsetSettings(pinned_columns=[f"summary:{LANGUAGE.metric('val')}.min", "summary:status"]),
    )


def _sections() -> "list[Section]":
    from wandb_workspaces.reports.v2 import BarPlot, MediaBrowser, WeavePanelSummaryTable
    from wandb_workspaces.workspaces import Section

    return [
        Section(
            name="Learning",
            is_open=True,
            panels=[
                _lines(LANGUAGE.objective.long.capitalize(), LANGUAGE.metric("val"), LANGUAGE.metric("train")),
                *(_lines(f"{m.long.capitalize()}, valid", f"val/{m.name}") for m in LANGUAGE.derived),
                BarPlot(title=f"Best {LANGUAGE.objective.long}, valid", metrics=[f"{LANGUAGE.metric('val')}.min"]),
            ],
        ),
        Section(
            name="Optimisation",
            is_open=True,
            panels=[
                _lines(
                    "Norm of the gradient, before and after clipping",
                    "stability/total/gradient_norm",
                    "stability/total/gradient_norm_clipped",
                    log_y=True,
                ),
                _layers("Norm of the gradient", "gradient_norm", log_y=True),
                _layers("Update over parameters", "update_ratio", log_y=True),
                _layers("Norm of the parameters", "parameter_norm", log_y=True),
                _lines("Learning rate", "train/lr"),
                _lines("Penalty of the regularizer", "train/regularizer"),
            ],
        ),
        Section(
            name="Attention",
            is_open=True,
            panels=[
                _lines(
                    "Entropy as a share of log n: mean and lowest layer",
                    "stability/total/entropy_share",
                    "stability/total/entropy_share_lowest_layer",
                ),
                _layers("Entropy as a share of log n", "entropy_share"),
                _layers("The same of the lowest head", "entropy_share_lowest_head"),
                _layers("Largest weight", "largest_weight"),
                _layers("Variance of the logits", "logit_variance", log_y=True),
                _layers("Norm of the softmax's Jacobian", "softmax_jacobian_norm"),
                _layers("Frobenius norm of the weights", "weights_frobenius"),
            ],
        ),
        Section(
            name="Ranges",
            panels=[
                _layers("Range of the output over that of the input", "range_ratio", log_y=True),
                _layers("What a branch adds over what it passes on", "branch_gain", log_y=True),
                _layers("Largest output", "output_max"),
                _layers("Standard deviation of the output", "output_std", log_y=True),
            ],
        ),
        Section(
            name="Lipschitz",
            panels=[
                _lines(
                    "Trunk: constant measured and certified",
                    regex=r"^(stability/trunk/local_lipschitz|certificate/trunk/.*)$",
                    log_y=True,
                ),
                _layers("Constant measured", "local_lipschitz", log_y=True),
                _layers("Spectral norm of the weights", "(query|key|value|out|expand|contract)_norm_2", log_y=True),
                _layers("Inf-norm of the weights", "(query|key|value|out|expand|contract)_norm_inf", log_y=True),
            ],
        ),
        Section(
            name="Invertibility",
            panels=[
                _layers("Rate of contraction of the fixed point", "contraction_rate"),
                _layers("Error of the inverse", "reconstruction_error", log_y=True),
            ],
        ),
        Section(
            name="Samples",
            is_open=True,
            panels=[
                WeavePanelSummaryTable(table_name="samples"),
                MediaBrowser(
                    title="Figures", media_keys=[f"figures/{name}" for name in FIGURES], num_columns=len(FIGURES)
                ),
            ],
        ),
        Section(
            name="System",
            panels=[
                _system("CPU, %", "system/cpu"),
                _system("Memory of the process, MB", "system/proc.memory.rssMB"),
                _system("GPU, %", "system/gpu.0.gpu"),
                _system("Memory of the GPU, %", "system/gpu.0.memoryAllocated"),
            ],
        ),
    ]


def _lines(title: str, *metrics: str, regex: str | None = None, log_y: bool = False) -> Any:
    """Curves over the tokens seen."""
    from wandb_workspaces.reports.v2 import LinePlot

    return LinePlot(
        title=title, x=TOKENS, y=list(metrics), metric_regex=regex, title_x="tokens seen", log_y=log_y or None
    )


def _layers(title: str, quantity: str, log_y: bool = False) -> Any:
    """One curve a layer; the number of layers is the run's affair."""
    return _lines(f"{title}, by layer", regex=f"^stability/.*/{quantity}$", log_y=log_y)


def _system(title: str, metric: str) -> Any:
    """What the machine does, which is recorded over time and not over tokens."""
    from wandb_workspaces.reports.v2 import LinePlot

    return LinePlot(title=title, x="RelativeTime(Process)", y=[metric])
