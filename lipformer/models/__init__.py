"""Whole models, the choices of the group ``model``, and text sampled from them."""
