"""Character-level Transformers whose attention and blocks have known Lipschitz constants."""

from typing import Any

__version__ = "0.1.0"

__all__ = ["load_run"]


def __getattr__(name: str) -> Any:
    """Import what is heavy only when it is asked for, so that configuration errors need not wait for torch."""
    if name == "load_run":
        from lipformer.training.checkpoint import load_run

        return load_run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
