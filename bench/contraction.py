"""Print a table of finished runs: their parts, nats per character on valid, and the certified constant of the trunk.

    python bench/contraction.py <run folder> [<run folder> ...]

Runs that differ only in their seed share a row, which lists the values of each. The constant is certified in the mixed
norm, for the last checkpoint and the context of the training.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

from lipformer import certify, load_run
from lipformer.tasks import task_of

MODEL = ("attention", "norm", "residual", "feedforward", "embedding")


def describe(group: dict | None) -> str:
    """Return the class of a group's choice, and the options in which these runs may differ; "-" without the group."""
    if group is None:
        return "-"
    name = group["_target_"].rpartition(".")[2]
    options = [f"{key}={group[key]}" for key in ("p", "locality", "filled", "max_scale") if group.get(key) is not None]
    return " ".join([name, *options])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    rows = defaultdict(list)
    for folder in parser.parse_args().folders:
        run = load_run(folder, which="last")
        metrics = json.loads((folder / "metrics.json").read_text())
        config = run.config
        size = config.get("depth", 0), config.get("width", 0), metrics["steps"]
        key = (*size, *(describe(config.get(group)) for group in MODEL))
        constant = certify(run.model, p="mixed").trunk
        score = metrics[task_of(config).metric("val")]
        rows[key].append((config["seed"], score, constant, metrics["tokens_per_second"]))
    print("| depth, width | steps | " + " | ".join(MODEL) + " | valid nats/char (seeds) | trunk, mixed | tokens/s |")
    print("|" + "---|" * (5 + len(MODEL)))
    for (depth, width, steps, *model), runs in sorted(rows.items(), key=lambda row: (row[0][0], min(row[1])[1])):
        runs.sort()
        nats, constants, rates = (
            ", ".join(form.format(run[i]) for run in runs) for i, form in ((1, "{:.4f}"), (2, "{:.2g}"), (3, "{:,.0f}"))
        )
        print(f"| {depth}, {width} | {steps:,} | {' | '.join(model)} | {nats} | {constants} | {rates} |")


if __name__ == "__main__":
    main()
