"""The Lightning callbacks of a training."""
