"""Time the inversion of x + f(x), all tokens in parallel and one token after another, as a Markdown table.

    python bench/invert.py [--batch 1 --repeats 7 --seed 0]

f is contractive_l2 (p = mixed, scale = 0.97) in float32, and X ~ N(0, 1). The two methods take turns; the table shows
medians of their times and of the ratios. At initialisation f contracts much more than its bound says. In the second row
of each shape its value maps are multiples of the identity, which brings f closer to the bound.
"""

import argparse
import statistics
import time

import torch
from torch import Tensor

from lipformer.modules.attention import ContractiveL2Attention
from lipformer.modules.fixed_point import Solution, solve

SHAPES = [(64, 4, 16), (64, 4, 64)]


def strengthen(layer: ContractiveL2Attention) -> None:
    """Make W^Q and W^O orthogonal and W^V = W^Q, so that every M_h is a multiple of the identity."""
    torch.nn.init.orthogonal_(layer.query.weight)
    layer.value.weight.copy_(layer.query.weight)
    layer.out.weight.copy_(layer.query.weight.mT)


def timed(layer: ContractiveL2Attention, y: Tensor, method: str) -> tuple[float, Solution]:
    begin = time.perf_counter()
    solution = solve(layer, y, method=method)
    return time.perf_counter() - begin, solution


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("| width, heads, tokens | weights | evaluations, parallel | sequential | ms, parallel | sequential | ratio |")
    print("|---|---|---|---|---|---|---|")
    for width, heads, length in SHAPES:
        for strong in (False, True):
            torch.manual_seed(options.seed)
            layer = ContractiveL2Attention(width, heads, context=length)
            if strong:
                strengthen(layer)
            y = torch.randn(options.batch, length, width)
            y = y + layer(y)
            seconds: dict[str, list[float]] = {"parallel": [], "sequential": []}
            evaluations = {}
            for repeat in range(options.repeats + 1):
                for method, times in seconds.items():
                    took, solution = timed(layer, y, method)
                    assert solution.converged
                    evaluations[method] = solution.iterations
                    if repeat:  # the first pair warms up
                        times.append(took)
            parallel, sequential = (1e3 * statistics.median(times) for times in seconds.values())
            ratio = statistics.median(b / a for a, b in zip(*seconds.values(), strict=True))
            print(
                f"| {width}, {heads}, {length} | {'strong' if strong else 'initial'} | {evaluations['parallel']} "
                f"| {evaluations['sequential']} | {parallel:.2f} | {sequential:.1f} | {ratio:.1f} |"
            )


if __name__ == "__main__":
    main()
