"""The configuration of a run, composed, listed and checked before anything heavy is imported.

`lipformer.options` states types, defaults, ranges and meanings, `conf/*.yaml` the classes and the values that differ.
Each shipped YAML names its schema in its defaults list (``/schema/attention/tied_l2@_here_``), so Hydra knows every
option and refuses a wrong type or an unknown key while it composes; `validate` then checks ranges, and what depends on
two keys. A YAML of a user's own that names no schema is accepted as it is: its class checks its own arguments.
"""

from lipformer.config.evaluate import EvaluateConfig
from lipformer.config.model import MODEL_GROUPS, MODEL_SCALARS, keys_read, refuse_unread, without_unread
from lipformer.config.places import conf_dir
from lipformer.config.store import choices_by_option, register, to_plain, validate
from lipformer.config.targets import without_partial
from lipformer.config.train import NO_REGULARIZER, TrainConfig
from lipformer.config.typed import typed_keys

__all__ = [
    "MODEL_GROUPS",
    "MODEL_SCALARS",
    "NO_REGULARIZER",
    "EvaluateConfig",
    "TrainConfig",
    "choices_by_option",
    "conf_dir",
    "keys_read",
    "refuse_unread",
    "register",
    "to_plain",
    "typed_keys",
    "validate",
    "without_partial",
    "without_unread",
]
