"""Time one training step (forward and backward) of each attention against dot_product's, in one process.

    python bench/attention_step.py [--rounds 15 --threads 2 --batch 16]

Each round times every kind once, in an order that is reversed every other round, and divides the times by those of the
reference kinds in the same round, so that a slow spell of the machine affects both sides of a ratio. The table shows
medians over the rounds.
"""

import argparse
import os
import statistics
import time

# On a machine with other work, threads that spin while they wait would make this a measurement of the scheduler.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from lipformer.modules.attention import (
    ContractiveL2Attention,
    ContractiveL2BlocksAttention,
    ContractiveL2DecoupledAttention,
    DotProductAttention,
    L2Attention,
    TiedL2Attention,
)

KINDS = {
    "dot_product": (DotProductAttention, {}),
    "tied_l2": (TiedL2Attention, {}),
    "tied_l2, explicit": (TiedL2Attention, {"fused": False}),
    "tied_l2_matched": (TiedL2Attention, {"columns": 2}),
    "contractive_l2": (ContractiveL2Attention, {}),
    "contractive_l2_decoupled": (ContractiveL2DecoupledAttention, {"locality": 1.0}),
    "contractive_l2_blocks": (ContractiveL2BlocksAttention, {"locality": 1.0}),
    "l2": (L2Attention, {}),
}
TARGETS = {("tied_l2", "dot_product"): 1.1, ("tied_l2", "tied_l2, explicit"): 0.5}


def time_step(layer: nn.Module, x: Tensor, gradient: Tensor) -> float:
    """Return the milliseconds of one forward and backward pass, with gradients of the input and of all weights."""
    layer.zero_grad(set_to_none=True)
    x = x.detach().requires_grad_()
    if x.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    layer(x).backward(gradient)
    if x.is_cuda:
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def measure(layers: dict[str, nn.Module], x: Tensor, rounds: int, warmup: int = 2) -> dict[str, list[float]]:
    """Return, for every kind, the milliseconds of its step in each round."""
    gradient = torch.randn_like(x)
    times: dict[str, list[float]] = {name: [] for name in layers}
    for turn in range(warmup + rounds):
        for name in list(layers)[:: 1 if turn % 2 else -1]:
            elapsed = time_step(layers[name], x, gradient)
            if turn >= warmup:
                times[name].append(elapsed)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--length", type=int, default=288)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    setting = {"device": options.device, "dtype": getattr(torch, options.dtype)}
    layers = {
        name: kind(options.width, options.heads, context=options.length, **keywords).to(**setting)
        for name, (kind, keywords) in KINDS.items()
    }
    x = torch.randn(options.batch, options.length, options.width, **setting)
    times = measure(layers, x, options.rounds)

    table = Table(
        title=f"One training step: batch {options.batch}, N {options.length}, width {options.width}, "
        f"heads {options.heads}, {options.dtype}, {options.device}, {options.threads} threads, "
        f"{options.rounds} rounds, torch {torch.__version__}"
    )
    for column in ("attention", "median ms", "min..max ms", "/ dot_product", "/ tied_l2, explicit"):
        table.add_column(column, justify="left" if column == "attention" else "right")
    for name, elapsed in times.items():
        table.add_row(
            name,
            f"{statistics.median(elapsed):.1f}",
            f"{min(elapsed):.1f}..{max(elapsed):.1f}",
            *(f"{ratio(times, name, base):.2f}" for base in ("dot_product", "tied_l2, explicit")),
        )
    console = Console(width=110)
    console.print(table)
    for (name, base), target in TARGETS.items():
        reached = ratio(times, name, base)
        verdict = "holds" if reached <= target else "MISSED"
        console.print(f"{name} / {base}: {reached:.2f}, at most {target} wanted: {verdict}", highlight=False)


def ratio(times: dict[str, list[float]], name: str, base: str) -> float:
    """Return the median over rounds of one kind's time over another's in the same round."""
    return statistics.median(a / b for a, b in zip(times[name], times[base], strict=True))


if __name__ == "__main__":
    main()
