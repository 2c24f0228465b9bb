"""Measure a trained model, from its checkpoint alone, and let it write.

python evaluate.py checkpoint=<run folder or .ckpt> split=test
python evaluate.py checkpoint=<run folder or .ckpt> generate.samples=3 generate.temperature=0.8
"""

from lipformer.cli import evaluate

if __name__ == "__main__":
    evaluate()
