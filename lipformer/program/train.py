"""``lipformer train`` and ``python -m lipformer.program.train``: the program of ``train.py``."""

from lipformer.program.cli import train

if __name__ == "__main__":
    train()
