"""Character-level Transformers whose attention and blocks have known Lipschitz constants."""

__version__ = "0.1.0"
