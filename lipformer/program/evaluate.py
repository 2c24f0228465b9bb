"""``lipformer evaluate`` and ``python -m lipformer.program.evaluate``: the program of ``evaluate.py``."""

from lipformer.program.cli import evaluate

if __name__ == "__main__":
    evaluate()
