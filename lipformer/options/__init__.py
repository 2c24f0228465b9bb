"""What can be set, stated once: the type, default, range and meaning of every option.

A dataclass for each kind of part, free of torch and Hydra. The constructor of a part takes its defaults from there
(``columns: int = TiedL2Options.columns``) and checks by it; `lipformer.config` hands the same dataclasses to Hydra as
schemas, so that ``conf/*.yaml`` states only the class and what differs from it, and checks by them before torch is
imported.
"""

from lipformer.options.option import REQUIRED, Options, PartOptions, option

__all__ = ["REQUIRED", "Options", "PartOptions", "option"]
