"""Train a character language model.

    python train.py attention=tied_l2 depth=4
    python train.py -m lr=1e-4,3e-4,1e-3

`python train.py --help` lists the groups and their choices, `--cfg job` prints the configuration.
"""

from lipformer.program.cli import train

if __name__ == "__main__":
    train()
