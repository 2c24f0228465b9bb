"""Character-level Transformers whose attention and blocks have known Lipschitz constants."""

from typing import Any

from lipformer.version import __version__

__all__ = ["__version__", "certify", "load_run"]


def __getattr__(name: str) -> Any:
    """Import what is heavy only when it is asked for, so that configuration errors need not wait for torch."""
    if name == "load_run":
        from lipformer.assembly.checkpoint import load_run

        return load_run
    if name == "certify":
        from lipformer.bounds.certificate import certify

        return certify
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
