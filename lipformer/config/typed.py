"""The keys that were typed on the command line."""

from hydra.conf import HydraConf
from hydra.core.override_parser.overrides_parser import OverridesParser


def typed_keys(hydra: HydraConf) -> list[str]:
    """Return the keys and groups of the overrides of a job, in the order in which they were typed."""
    overrides = OverridesParser.create().parse_overrides(list(hydra.overrides.task))
    return [override.key_or_group for override in overrides]
