"""The names of what stands in a run folder: the one place that spells them."""

BEST, LAST, PREVIOUS = "best.ckpt", "last.ckpt", "previous.ckpt"
"""A run's checkpoints; the ``last.ckpt`` that is replaced becomes ``previous.ckpt``."""
