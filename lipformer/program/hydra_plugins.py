"""Hydra's sweepers and launchers of our own: makes Hydra find them.

Hydra accepts plugins only from the package ``hydra_plugins``, to which any distribution may add a folder. To install
a module into it would put a folder beside `lipformer/`; instead the path of that package is extended when the program
starts, in each process that runs a job.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType

from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton

NAME = "hydra_plugins"
FOLDER = str(Path(__file__).parent / "plugins")


def make_known() -> None:
    """Extend the path of ``hydra_plugins``, once; no plugin of another distribution need be installed."""
    try:
        package = importlib.import_module(NAME)
    except ModuleNotFoundError:
        package = sys.modules[NAME] = ModuleType(NAME)
        package.__path__ = []
    # As a list: the path of a namespace package is found anew when `sys.path` changes.
    if FOLDER not in package.__path__:
        package.__path__ = [*package.__path__, FOLDER]
        if Plugins in Singleton._instances:  # in this process Hydra has looked for plugins already
            Plugins.instance()._initialize()
