"""Measure training tokens per second of a whole model with each attention, in turn, in one process.

    python bench/model_step.py --threads 2 --rounds 15

Prints a Markdown table: median and range of tokens per second, and the median ratio to dot_product of the same round.
The model is that of experiment=ptb_small; the batch has the usual shape of that experiment and random characters.
"""

import argparse
import statistics
import time

import torch
from hydra import compose, initialize_config_dir

from lipformer.assembly.build import build_model
from lipformer.config import conf_dir, register, to_plain
from lipformer.config.targets import factory
from lipformer.telemetry.objective import sum_nats
from lipformer.training.parameter_groups import parameter_groups

KINDS = (
    "dot_product",
    "l2",
    "tied_l2",
    "tied_l2_matched",
    "contractive_l2",
    "contractive_l2_decoupled",
    "contractive_l2_blocks",
)
SYMBOLS = 50


class Step:
    """A model with its optimizer, ready to be timed."""

    def __init__(self, attention: str):
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            config = to_plain(compose("train", overrides=["experiment=ptb_small", f"attention={attention}"]))
        torch.manual_seed(0)
        self.model = build_model(config, SYMBOLS)
        self.optimizer = factory(config["optimizer"], "optimizer")(parameter_groups(self.model))
        self.parameters = sum(p.numel() for p in self.model.parameters())

    def seconds(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        start = time.perf_counter()
        nats, tokens = sum_nats(self.model(inputs), targets)
        self.optimizer.zero_grad()
        (nats / tokens).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    register()
    steps = {kind: Step(kind) for kind in KINDS}
    inputs, targets = torch.randint(SYMBOLS, (2, options.batch, options.length))
    for step in steps.values():  # warm-up
        step.seconds(inputs, targets)
    rounds = []
    for number in range(options.rounds):
        order = KINDS if number % 2 == 0 else KINDS[::-1]
        rounds.append({kind: steps[kind].seconds(inputs, targets) for kind in order})
    tokens = options.batch * options.length
    print(f"torch {torch.__version__}, {options.threads} threads, batch {options.batch} x {options.length}")
    print("| attention | parameters | tokens/s, median (range) | step / dot_product's, median (range) |")
    print("|---|---|---|---|")
    for kind in KINDS:
        speeds = sorted(tokens / measured[kind] for measured in rounds)
        ratios = sorted(measured[kind] / measured["dot_product"] for measured in rounds)
        print(
            f"| {kind} | {steps[kind].parameters:,} "
            f"| {statistics.median(speeds):,.0f} ({speeds[0]:,.0f} to {speeds[-1]:,.0f}) "
            f"| {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |"
        )


if __name__ == "__main__":
    main()
