"""Measure how many jobs of a sweep are trained in an hour, one by one and several at once, as a Markdown table.

    python bench/launchers.py                                     # some minutes a round; nothing else should run
    python bench/launchers.py --rounds 1 --jobs 2 --steps 50 --launchers basic joblib

Each sweep trains the same small models, with one seed for each job, in an empty folder; the time is that of the whole
command. The time of computing is what its processes used of all cores, which other processes change little. In each
round every launcher runs once, and in every second round in the opposite order. `--option` adds options of `train.py`.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def sweep(launcher: str, jobs: int, steps: int, options: list[str]) -> tuple[float, float]:
    """Run a sweep; return its jobs per hour, and the seconds that it kept a core busy for each job."""
    seeds = ",".join(str(seed) for seed in range(1, jobs + 1))
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            str(ROOT / "train.py"),
            "-m",
            f"hydra/launcher={launcher}",
            f"hydra.sweep.dir={folder}/sweep",
            f"seed={seeds}",
            "trainer=cpu",
            f"trainer.max_steps={steps}",
            *options,
        ]
        before, busy_before = time.perf_counter(), busy_seconds()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)
        return jobs / (time.perf_counter() - before) * 3600, (busy_seconds() - busy_before) / jobs


def busy_seconds() -> float:
    """Return the seconds of computing, on any core, of all processes that this one has started and that have ended."""
    used = os.times()
    return used.children_user + used.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--launchers", nargs="+", default=["basic", "joblib"])
    parser.add_argument("--option", nargs="*", default=[])
    asked = parser.parse_args()
    load = f"load before: {os.getloadavg()[0]:.1f}"
    measured: dict[str, list[tuple[float, float]]] = {launcher: [] for launcher in asked.launchers}
    for number in range(asked.rounds):
        order = asked.launchers if number % 2 == 0 else asked.launchers[::-1]
        for launcher in order:
            rate, busy = sweep(launcher, asked.jobs, asked.steps, asked.option)
            measured[launcher].append((rate, busy))
            print(f"round {number + 1}: {launcher} {rate:.0f} jobs an hour, {busy:.1f} s each", file=sys.stderr)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"{cores} cores, {load}, after: {os.getloadavg()[0]:.1f} (of which the last sweep is a part)\n")
    print("| launcher | jobs an hour, median | range | against the first | computing for each job, median |")
    print("|---|---|---|---|---|")
    first = statistics.median(rate for rate, _ in measured[asked.launchers[0]])
    for launcher, each in measured.items():
        rates, busy = ([pair[place] for pair in each] for place in (0, 1))
        median, span = statistics.median(rates), f"{min(rates):.0f} to {max(rates):.0f}"
        print(f"| {launcher} | {median:.0f} | {span} | {median / first:.2f} | {statistics.median(busy):.1f} s |")


if __name__ == "__main__":
    main()
