"""Layers that know their Lipschitz constants."""
