"""The version, which checkpoints and pages name."""

__version__ = "0.2.0"
