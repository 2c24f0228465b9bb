"""Lipschitz certificates of models and radii of their predictions; lower bounds that were measured."""
