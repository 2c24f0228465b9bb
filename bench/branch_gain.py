"""Measure the gain of attention branches that are divided by a Lipschitz bound, at initialisation, as Markdown tables.

    python bench/branch_gain.py [--length 288 --batch 4 --seed 0]

The gain of a branch f is rms(f(X)) / rms(X) for X ~ N(0, 1), with a causal mask, in float64. The first table divides
the L2 attention of Kim et al., with Glorot-uniform weights, by its bound in each norm. The second shows factored
attention with its initial temperature of 1/16, without and with the penalty on distance.
"""

import argparse
import math

import torch
from torch import Tensor

from lipformer import theorems
from lipformer.functional.heads import split_outputs
from lipformer.modules.attention import (
    ContractiveL2Attention,
    ContractiveL2BlocksAttention,
    ContractiveL2DecoupledAttention,
    TiedL2Attention,
)

SHAPES = [(512, 8), (256, 8), (128, 4)]


def rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()


def kim_bounds(layer: TiedL2Attention) -> tuple[float, float]:
    """Return the bounds of Kim et al. 2021, Theorem 3.2, for p = inf and p = 2."""
    query, value = (split_outputs(linear.weight, layer.heads) for linear in (layer.query, layer.value))
    weights = (query, value, layer.out.weight.mT, layer.context)
    return theorems.kim_bound_inf(*weights).item(), theorems.kim_bound_2(*weights).item()


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=288)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("| width, heads | bound inf | bound 2 | bound mixed | gain undivided | / inf | / 2 | / mixed |")
    print("|---|---|---|---|---|---|---|---|")
    for width, heads in SHAPES:
        torch.manual_seed(options.seed)
        layer = TiedL2Attention(width, heads, context=options.length).double()
        x = torch.randn(options.batch, options.length, width, dtype=torch.float64)
        cells = [*kim_bounds(layer), layer.lipschitz_bound("mixed").item()]
        gains = [rms(layer(x)) / rms(x)]
        for p in (math.inf, 2, "mixed"):
            divided = ContractiveL2Attention(width, heads, context=options.length, p=p).double()
            divided.load_state_dict(layer.state_dict())
            gains.append(rms(divided(x)) / rms(x))
        print(f"| {width}, {heads} | " + " | ".join(f"{value:.2g}" for value in (*cells, *gains)) + " |")
    print("\n| width, heads | decoupled | blocks | decoupled, locality 1 | blocks, locality 1 |")
    print("|---|---|---|---|---|")
    for width, heads in SHAPES:
        gains = []
        for locality in (None, 1.0):
            for kind in (ContractiveL2DecoupledAttention, ContractiveL2BlocksAttention):
                torch.manual_seed(options.seed)
                layer = kind(width, heads, context=options.length, temperature=1 / 16, locality=locality).double()
                x = torch.randn(options.batch, options.length, width, dtype=torch.float64)
                gains.append(rms(layer(x)) / rms(x))
        print(f"| {width}, {heads} | " + " | ".join(f"{value:.2g}" for value in gains) + " |")


if __name__ == "__main__":
    main()
