"""Measure what trainer.deterministic=true costs on the CPU: training steps of the same model in turn, in one process.

    python bench/deterministic.py                                           # four minutes
    python bench/deterministic.py --seconds 60 --models 64x4x1024 attention=dot_product

`--models` lists the Transformers by width, depth and tokens of a batch. `torch.use_deterministic_algorithms` also fills
memory that is not initialised, unless `torch.utils.deterministic.fill_uninitialized_memory` is false: that is measured
with and without. In a round each setting has one step, in an order that turns from round to round. The Markdown table
shows the processor time of a step, and the median and quartiles over the rounds of its ratio to that of the same round
without determinism. The setting "the same again" is measured twice: its ratio shows how far one of 1 goes astray.
Then the operators are listed that torch's profiler counts more often with determinism, with their share of the time.
"""

import argparse
import statistics
import time

import torch
import torch.utils.deterministic
from hydra import compose, initialize_config_dir
from torch.profiler import ProfilerActivity, profile

from lipformer.assembly.build import build_model
from lipformer.config import conf_dir, register, to_plain
from lipformer.config.targets import factory
from lipformer.telemetry.objective import sum_nats
from lipformer.training.parameter_groups import parameter_groups

SETTINGS = {
    "false": (False, True),
    "the same again": (False, True),
    "true": (True, True),
    "true, memory not filled": (True, False),
}
"""Name -> whether algorithms are deterministic, and whether memory that is not initialised is filled then."""
SYMBOLS = 50
LENGTH = 128


class Step:
    """A model with its optimizer and a batch of random characters, ready to be timed."""

    def __init__(self, width: int, depth: int, tokens: int, seed: int, overrides: list[str]):
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            config = to_plain(compose("train", [f"width={width}", f"depth={depth}", "context=128", *overrides]))
        torch.manual_seed(seed)
        self.model = build_model(config, SYMBOLS)
        self.optimizer = factory(config["optimizer"], "optimizer")(parameter_groups(self.model))
        self.inputs, self.targets = torch.randint(SYMBOLS, (2, max(1, tokens // LENGTH), LENGTH))

    def train(self) -> None:
        """Take one step of training."""
        nats, tokens = sum_nats(self.model(self.inputs), self.targets)
        self.optimizer.zero_grad()
        (nats / tokens).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def seconds(self) -> float:
        """Return the processor seconds of one step."""
        start = time.process_time()
        self.train()
        return time.process_time() - start


def choose(setting: str) -> None:
    """Set torch's flags, which are those of the whole process."""
    deterministic, filled = SETTINGS[setting]
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = filled


def measure(step: Step, seconds: float) -> list[dict[str, float]]:
    """Return the processor seconds of a step with each setting, for each round, in rounds that take that long."""
    for setting in SETTINGS:  # warm-up
        choose(setting)
        step.train()
    names, measured, until = list(SETTINGS), [], time.perf_counter() + seconds
    while time.perf_counter() < until or len(measured) < 2:
        turn = len(measured) % len(names)
        row = {}
        for setting in (names[turn:] + names[:turn])[:: 1 if len(measured) % 2 == 0 else -1]:
            choose(setting)
            row[setting] = step.seconds()
        measured.append(row)
    return measured


def operators(step: Step, setting: str) -> dict[str, tuple[int, float]]:
    """Return how often a step calls each operator, and its share of the processor time, over three steps."""
    choose(setting)
    step.train()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(3):
            step.train()
    events = profiled.key_averages()
    total = sum(event.self_cpu_time_total for event in events)
    return {event.key: (event.count // 3, event.self_cpu_time_total / total) for event in events}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="of rounds, for each model and seed")
    parser.add_argument("--models", nargs="+", default=["16x1x512", "64x4x1024", "128x4x4096", "256x6x2048"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("overrides", nargs="*", help="keys of train.py, such as attention=dot_product")
    options = parser.parse_args()
    torch.set_num_threads(1)
    register()
    print(
        f"torch {torch.__version__}, 1 thread, {len(options.seeds)} seeds, {' '.join(options.overrides) or 'defaults'}"
    )
    print("| model | trainer.deterministic | ms a step | ratio: median (quartiles) of rounds | of each seed |")
    print("|---|---|---|---|---|")
    more = []
    for model in options.models:
        by_seed = []
        for seed in options.seeds:
            step = Step(*map(int, model.split("x")), seed, options.overrides)
            by_seed.append(measure(step, options.seconds))
        rounds = [row for measured in by_seed for row in measured]
        for setting in SETTINGS:
            ratios = [row[setting] / row["false"] for row in rounds]
            low, middle, high = statistics.quantiles(ratios, n=4)
            seeds = [statistics.median(row[setting] / row["false"] for row in measured) for measured in by_seed]
            print(
                f"| {model} | {setting} | {1000 * statistics.median(row[setting] for row in rounds):.2f} "
                f"| {middle:.3f} ({low:.3f} to {high:.3f}) of {len(rounds):,} "
                f"| {', '.join(f'{ratio:.3f}' for ratio in seeds)} |",
                flush=True,
            )
        without, with_it = operators(step, "false"), operators(step, "true")
        for name, (count, share) in sorted(with_it.items()):
            before, share_before = without.get(name, (0, 0.0))
            if count != before:
                more.append(f"{model}: {name} {before:,} -> {count:,} calls, {share_before:.2%} -> {share:.2%}")
    print("\n".join(more))


if __name__ == "__main__":
    main()
