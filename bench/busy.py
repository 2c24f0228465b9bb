"""Measure training tokens per second on a quiet machine and beside spinning neighbours, for settings of OpenMP.

    python bench/busy.py                      # some ten minutes a model; nothing else should run on the machine
    python bench/busy.py --seconds 3 --rounds 1 --models 64x1024

Each measurement runs in a process of its own, which trains a Transformer on batches of random characters; `--models`
lists the Transformers by width and tokens of a batch. The neighbours are as many processes as the machine has cores,
each of which keeps one core busy. The Markdown table shows the median and range of tokens per second over the rounds,
their share of the best quiet speed and, on the busy machine, their share of the fair speed. With c cores, n threads of
the training and k neighbours, each thread can have c/(n + k) of a core; the fair speed is c/(n + k) of the quiet speed
in the same setting.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
SETTINGS: dict[str, tuple[str, dict[str, str]]] = {
    "torch's own": (str(CORES), {}),
    "OMP_WAIT_POLICY=passive": (str(CORES), {"OMP_WAIT_POLICY": "passive"}),
    "GOMP_SPINCOUNT=3000": (str(CORES), {"GOMP_SPINCOUNT": "3000"}),
    "one thread": ("1", {}),
    "lipformer's": ("lipformer", {}),
}
"""Name of a setting -> number of threads, and the environment variables that set how they wait."""
SYMBOLS = 50
LENGTH = 128


def train(width: int, tokens: int, threads: str, seconds: float) -> tuple[float, int]:
    """Train a Transformer of depth 4; return its tokens per second and the number of threads that torch used."""
    if threads == "lipformer":
        import lipformer.program.cli  # noqa: F401  sets the spin count, before torch is there
    import torch
    from hydra import compose, initialize_config_dir

    from lipformer.assembly.build import build_model
    from lipformer.config import conf_dir, register, to_plain
    from lipformer.config.targets import factory
    from lipformer.telemetry.objective import sum_nats
    from lipformer.training.parameter_groups import parameter_groups
    from lipformer.training.threads import choose_threads

    register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = to_plain(compose("train", overrides=[f"width={width}", f"data.batch_tokens={tokens}"]))
    asked = None if threads == "lipformer" else int(threads)
    torch.set_num_threads(choose_threads(asked, width=width, batch_tokens=tokens))
    torch.manual_seed(0)
    model = build_model(config, SYMBOLS)
    optimizer = factory(config["optimizer"], "optimizer")(parameter_groups(model))
    inputs, targets = torch.randint(SYMBOLS, (2, tokens // LENGTH, LENGTH))

    def step() -> None:
        nats, count = sum_nats(model(inputs), targets)
        optimizer.zero_grad()
        (nats / count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    step()  # first calls; one, for torch's own setting beside neighbours takes seconds
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        step()
        steps += 1
    return steps * tokens / (time.perf_counter() - start), torch.get_num_threads()


def measure(width: int, tokens: int, setting: str, seconds: float) -> tuple[float, int]:
    """Return the result of `train` in a process of its own."""
    threads, waiting = SETTINGS[setting]
    kept = {name: v for name, v in os.environ.items() if name not in WAITING and not name.endswith("NUM_THREADS")}
    command = [sys.executable, __file__, "--child", str(width), str(tokens), threads, str(seconds)]
    done = subprocess.run(command, env={**kept, **waiting}, check=True, stdout=subprocess.PIPE, text=True)
    speed, count = done.stdout.split()
    return float(speed), int(count)


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Keep `count` cores busy."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4, help="of training for each figure")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--neighbours", type=int, default=CORES)
    parser.add_argument("--models", nargs="+", default=["64x1024", "128x1024", "128x4096", "256x4096"])
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        width, tokens, threads, seconds = options.child
        print(*train(int(width), int(tokens), threads, float(seconds)))
        return
    k = options.neighbours
    print(f"{CORES} cores, {k} neighbours, {options.rounds} rounds of {options.seconds:g} s; tokens/s, median (range)")
    print("| width x tokens | setting | threads | quiet | share of the best | busy | share of what is fair |")
    print("|---|---|---|---|---|---|---|")
    for model in options.models:
        width, tokens = map(int, model.split("x"))
        quiet: dict[str, list[float]] = {name: [] for name in SETTINGS}
        busy: dict[str, list[float]] = {name: [] for name in SETTINGS}
        counts: dict[str, int] = {}
        for number in range(options.rounds):
            for name in list(SETTINGS)[:: 1 if number % 2 == 0 else -1]:
                speed, counts[name] = measure(width, tokens, name, options.seconds)
                quiet[name].append(speed)
                with neighbours(k):
                    busy[name].append(measure(width, tokens, name, options.seconds)[0])
        best = max(map(statistics.median, quiet.values()))
        for name, n in counts.items():
            alone, beside = statistics.median(quiet[name]), statistics.median(busy[name])
            fair = alone * min(1.0, CORES / (n + k))
            print(
                f"| {model} | {name} | {n} | {spread(quiet[name])} | {alone / best:.0%} | {spread(busy[name])} "
                f"| {beside / fair:.2f} |",
                flush=True,
            )


def spread(speeds: list[float]) -> str:
    return f"{statistics.median(speeds):,.0f} ({min(speeds):,.0f} to {max(speeds):,.0f})"


if __name__ == "__main__":
    main()
