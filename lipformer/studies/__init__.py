"""One question a file, answered by ``python evaluate.py study=<name>``."""
