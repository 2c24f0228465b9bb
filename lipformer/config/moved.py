"""Names of earlier versions that a user's YAML, code or a stored run may hold, with the names of today."""

MODULES: dict[str, str] = {
    "lipformer.atomic": "lipformer.system.atomic",
    "lipformer.bounds.compose": "lipformer.theorems.compose",
    "lipformer.bounds.theorems": "lipformer.theorems",
    "lipformer.cli": "lipformer.program.cli",
    "lipformer.functional.constant_weights": "lipformer.modules.contexts",
    "lipformer.functional.eval_mode": "lipformer.modules.contexts",
    "lipformer.functional.explicit": "lipformer.modules.contexts",
    "lipformer.generate": "lipformer.models.generate",
    "lipformer.lstm": "lipformer.models.lstm",
    "lipformer.model": "lipformer.models.transformer",
    "lipformer.modules.norms": "lipformer.modules.normalisations",
    "lipformer.run_folder": "lipformer.runs.folder",
    "lipformer.run_record": "lipformer.runs.record",
    "lipformer.studies.measured": "lipformer.studies.evaluation",
    "lipformer.studies.opening": "lipformer.studies.loading",
    "lipformer.sweep_report": "lipformer.program.sweep_report",
    "lipformer.training.build": "lipformer.assembly.build",
    "lipformer.training.checkpoint": "lipformer.assembly.checkpoint",
    "lipformer.training.loggers": "lipformer.training.loggers.choices",
    "lipformer.training.metrics": "lipformer.telemetry.objective",
    "lipformer.training.module": "lipformer.training.language",
}
"""Earlier module -> the one that holds its contents today. Stored runs are read so; a user's YAML gets an error."""

OPTIONS: dict[str, dict[str, str]] = {
    "lipformer.training.callbacks.stability.StabilityMonitor": {"dear_every_n_steps": "expensive_every_n_steps"},
}
"""Class, by its path of today -> earlier name of an option -> its name of today."""

SCHEMAS: dict[str, str] = {"attention/contractive_factors": "attention/factored_l2"}
"""Schema that a YAML of a user's own may name in its defaults list -> its name of today."""


def target_today(target: str) -> str:
    """Return the path of a class or function today, which is `target` itself if it has not moved."""
    module, _, name = target.rpartition(".")
    return f"{MODULES[module]}.{name}" if module in MODULES else target
