"""Which parameters of a model decay."""

from typing import Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from lipformer.modules.orthogonal import Cayley


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Split the parameters into matrices, which decay, and all else (biases, gains, embeddings, positions).

    Of a parametrised weight it is the matrix that it is computed from, and nothing else of it, that decays. An
    orthogonal one (`Cayley`) does not: its size is fixed, and decay would draw it to where it started.
    """
    matrices = {
        id(p)
        for module in model.modules()
        if isinstance(module, nn.RNNBase)
        for name, p in module.named_parameters()
        if name.startswith("weight")
    }
    linears: list[Any] = [module for module in model.modules() if isinstance(module, nn.Linear)]
    for linear in linears:
        if not is_parametrized(linear, "weight"):
            matrices.add(id(linear.weight))
        elif not isinstance(linear.parametrizations.weight[0], Cayley):
            matrices.add(id(linear.parametrizations.weight.original))
    decaying = [p for p in model.parameters() if id(p) in matrices]
    others = [p for p in model.parameters() if id(p) not in matrices]
    return [{"params": decaying}, {"params": others, "weight_decay": 0.0}]
