"""What the pages of HTML share: templates in which everything is text, and how a folder is named."""

import os
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lipformer.report.text import visible


def environment() -> Environment:
    """Return the templates' environment: nothing that is put into a page is markup, but for assets of our own."""
    made = Environment(
        loader=PackageLoader("lipformer.report", "assets"),
        autoescape=True,
        finalize=lambda value: visible(value) if type(value) is str else value,  # not Markup, which is ours
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["asset"] = _asset
    return made


def shown(folder: Path) -> str:
    """Return the folder from where the commands are typed, if it lies below."""
    folder = folder.absolute()
    return os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else str(folder)


def _asset(name: str) -> Markup:
    return Markup((Path(__file__).parent / "assets" / name).read_text(encoding="utf-8"))
