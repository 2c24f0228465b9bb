"""The environment of the HTML templates, in which every value is escaped, and how a folder is named to a reader."""

import os
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lipformer.system.text import visible


def environment() -> Environment:
    """Return the environment of the templates: every value is escaped, except the package's own scripts and styles."""
    made = Environment(
        loader=PackageLoader("lipformer.report", "assets"),
        autoescape=True,
        finalize=lambda value: visible(value) if type(value) is str else value,  # a Markup is our own text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["asset"] = _asset
    return made


def shown(folder: Path) -> str:
    """Return the folder's path relative to the working directory if it lies below it, else its absolute path."""
    folder = folder.absolute()
    return os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else str(folder)


def _asset(name: str) -> Markup:
    return Markup((Path(__file__).parent / "assets" / name).read_text(encoding="utf-8"))
