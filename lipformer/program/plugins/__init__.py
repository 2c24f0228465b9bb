"""Plugins of Hydra: it finds their modules as ``hydra_plugins.<module>``, the only place that it accepts them from."""
