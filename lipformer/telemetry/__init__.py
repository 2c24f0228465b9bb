"""Measurements of a model while it trains or is evaluated; none of them changes it."""
