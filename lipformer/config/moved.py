"""Classes and functions that a ``_target_`` may name and that have moved, one row each."""

MOVED: dict[str, str] = {
    "lipformer.model.CharTransformer": "lipformer.models.transformer.CharTransformer",
    "lipformer.lstm.CharLSTM": "lipformer.models.lstm.CharLSTM",
    "lipformer.training.loggers.no_further_logger": "lipformer.training.loggers.choices.no_further_logger",
    "lipformer.training.loggers.tensorboard_logger": "lipformer.training.loggers.choices.tensorboard_logger",
    "lipformer.training.loggers.wandb_logger": "lipformer.training.loggers.choices.wandb_logger",
    **{
        f"lipformer.modules.norms.{name}": f"lipformer.modules.normalisations.{name}"
        for name in ("LayerNorm", "RMSNorm", "CenterNorm", "ActNorm", "NoNorm")
    },
}
"""``_target_`` in earlier versions -> ``_target_`` today. Stored runs are read by it; elsewhere the error names it."""
