"""All options: the type, default, range and meaning of each, stated once.

Each kind of part has a dataclass here, free of torch and Hydra. The constructor of a part takes its defaults from the
dataclass (``columns: int = TiedL2Options.columns``) and checks its arguments by it. `lipformer.config` gives the same
dataclasses to Hydra as schemas, so that a file of ``conf/`` states only the class and the values that differ from the
defaults, and checks a configuration by them before torch is imported.
"""

from lipformer.options.option import REQUIRED, Options, PartOptions, option

__all__ = ["REQUIRED", "Options", "PartOptions", "option"]
