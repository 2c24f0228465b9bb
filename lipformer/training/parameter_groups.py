"""The two groups of parameters that an optimizer gets: those with weight decay and those without."""

from typing import Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from lipformer.modules.orthogonal import Cayley


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Split the parameters into weight matrices, which decay, and all others: biases, gains, embeddings, positions.

    The matrices are the weights of ``nn.Linear`` and of recurrent layers. Of a parametrised weight the matrix that it
    is computed from decays, and none of its other parameters. An orthogonal weight (`Cayley`) does not decay: its norm
    is fixed, and decay would pull it towards its initial value.

    Returns:
        Two groups as a torch optimizer takes them, the second without weight decay.
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
