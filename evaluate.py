"""Measure a trained model, from its checkpoint alone, let it write, or run a study.

python evaluate.py checkpoint=<run folder or .ckpt> split=test
python evaluate.py checkpoint=<run folder or .ckpt> generate.samples=3 generate.temperature=0.8
python evaluate.py study=<name>
"""

from lipformer.program.cli import evaluate

if __name__ == "__main__":
    evaluate()
