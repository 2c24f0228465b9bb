"""Where the YAML files are."""

from pathlib import Path


def conf_dir() -> Path:
    """Return the folder of the YAML files: inside the installed package, or at the root of a checkout."""
    installed = Path(__file__).parents[1] / "conf"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "conf"
