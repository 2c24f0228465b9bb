"""The table of layers and what each promises; ``test_laws.py`` holds every one to it, in float64.

A new kind of layer is one row. ``build(width=, context=, causal=, dropout=)`` makes it; kinds that have no
heads, no context or no order of tokens ignore what they do not need.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from lipformer.functional.spectral import Norm
from lipformer.modules.attention import (
    ContractiveL2Attention,
    ContractiveL2BlocksAttention,
    ContractiveL2DecoupledAttention,
    CosineAttention,
    DotProductAttention,
    KernelAttention,
    L2Attention,
    QKNormAttention,
    SigmoidAttention,
    TiedL2Attention,
)
from lipformer.modules.feedforward import ContractiveFeedForward, FeedForward, NoFeedForward
from lipformer.modules.linear import sigma_reparam
from lipformer.modules.normalisations import ActNorm, CenterNorm, LayerNorm, NoNorm, RMSNorm
from lipformer.modules.residual import ConvexResidual, InvertibleResidual, PostNorm, PreNorm, WeightedResidual

ALL_NORMS: tuple[Norm, ...] = (2, math.inf, "mixed")
PLAIN = {"temperature": 1.0, "locality": None}
"""Of the kinds that are ours: without a penalty on distance, which permutations would not leave as it is."""


@dataclass(frozen=True)
class Kind:
    """One layer and its promises."""

    name: str
    build: Callable[..., nn.Module]
    causal: bool = True
    """With causal=True no output depends on a later token."""
    equivariant: bool = True
    """With causal=False, permuting the tokens permutes the outputs."""
    fused: bool = True
    """Has a second path, chosen by ``forward(x, fused=)``."""
    lipschitz: tuple[Norm, ...] = ()
    """Norms with a finite bound; in the others ``lipschitz_bound`` is infinite."""
    contracts: dict[Norm, float] = field(default_factory=dict)
    """Norms with a bound below one, and that bound."""
    witness: Callable[[float], tuple[nn.Module, Tensor]] | None = None
    """For a kind that is not Lipschitz: a layer and inputs whose Jacobian grows without limit."""
    ball: bool = False
    """Has a finite bound for tokens of bounded norm, ``lipschitz_bound_on_ball(radius, p, length)``, in all norms."""
    climbs: bool = True
    """Its Jacobian depends on tokens or weights."""
    combined: bool = False
    """Of parts that have rows of their own: ascended in the slow suite alone."""


def attention(kind: type[nn.Module], heads: int = 2, **keywords) -> Callable[..., nn.Module]:
    """Return a factory of an attention kind with two heads."""

    def build(width: int = 4, context: int = 6, causal: bool = True, dropout: float = 0.0) -> nn.Module:
        return kind(width, heads, context=context, causal=causal, dropout=dropout, **keywords).double().eval()

    return build


def causal_only(build: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Return a factory of the same kind that is causal whatever is asked for, as a penalty on distance has to be."""
    return lambda *arguments, **keywords: build(*arguments, **{**keywords, "causal": True})


def token_wise(kind: type[nn.Module], **keywords) -> Callable[..., nn.Module]:
    """Return a factory of a norm or a feed-forward branch."""

    def build(width: int = 4, context: int = 6, causal: bool = True, dropout: float = 0.0) -> nn.Module:
        return kind(width, **keywords).double().eval()

    return build


def residual(
    kind: type[nn.Module], branch: Callable[..., nn.Module], norm: Callable[[int], nn.Module], **keywords
) -> Callable[..., nn.Module]:
    """Return a factory of a branch in its residual."""

    def build(width: int = 4, context: int = 6, causal: bool = True, dropout: float = 0.0) -> nn.Module:
        return kind(branch(width, context, causal, dropout), norm, width, **keywords).double().eval()

    return build


def sigma_reparametrised(build: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Return a factory of the same kind with every weight matrix sigma-reparametrised."""

    def build_and_parametrise(*arguments, **keywords) -> nn.Module:
        layer = build(*arguments, **keywords)
        for linear in [module for module in layer.modules() if isinstance(module, nn.Linear)]:
            sigma_reparam(linear)
        return layer

    return build_and_parametrise


def spread_around_zero(
    kind: type[nn.Module] = DotProductAttention, power: int = 1, **keywords
) -> Callable[[float], tuple[nn.Module, Tensor]]:
    """A token of zeros attends to the others evenly: their covariance enters its derivative.

    Where that is a covariance with something bounded, the derivative grows like the tokens only, not their square;
    where scores first have to grow large, late. There ``power`` is 2.
    """

    def witness(scale: float) -> tuple[nn.Module, Tensor]:
        torch.manual_seed(0)
        x = scale**power * torch.randn(4, 4, dtype=torch.float64)
        x[-1] = 0
        return attention(kind, **keywords)(), x

    return witness


def one_stays(scale: float) -> tuple[nn.Module, Tensor]:
    """ReLU features: a token of size one turns, its weights with it, and the values they mix have moved away."""
    torch.manual_seed(0)
    layer = attention(KernelAttention, features="relu")()
    with torch.no_grad():
        for weight in layer.parameters():
            weight.copy_(torch.eye(4))
    x = torch.rand(4, 4, dtype=torch.float64)
    x[:-1] *= scale**2
    return layer, x


def keys_off_their_queries(scale: float) -> tuple[nn.Module, Tensor]:
    """W^K = W^Q / 2 in one dimension: a token is not nearest to itself, and distances are not bounded."""
    layer = attention(L2Attention, heads=1)(width=1, causal=False)
    with torch.no_grad():
        for linear, weight in ((layer.query, 1), (layer.key, 0.5), (layer.value, 1), (layer.out, 1)):
            linear.weight.fill_(weight)
    return layer, scale * torch.tensor([[1.0], [2.8], [1.2]], dtype=torch.float64)


KINDS = [
    Kind("dot_product", attention(DotProductAttention), witness=spread_around_zero(), ball=True),
    Kind(
        "sigmoid",
        attention(SigmoidAttention),
        fused=False,
        witness=spread_around_zero(SigmoidAttention, power=2),
        ball=True,
    ),
    Kind(
        "elu_kernel",
        attention(KernelAttention, features="elu"),
        witness=spread_around_zero(KernelAttention, power=2, features="elu"),
        ball=True,
    ),
    Kind("relu_kernel", attention(KernelAttention, features="relu", eps=0.1), witness=one_stays, ball=True),
    Kind(
        "qk_norm",
        attention(QKNormAttention, heads=1, eps=0.1),
        witness=spread_around_zero(QKNormAttention, power=2),
        ball=True,
    ),
    Kind(
        "qk_norm_rms",
        attention(QKNormAttention, centred=False, eps=0.1),
        witness=spread_around_zero(QKNormAttention, power=2, centred=False),
        ball=True,
    ),
    Kind("cosine", attention(CosineAttention), lipschitz=ALL_NORMS),
    Kind("l2", attention(L2Attention), witness=keys_off_their_queries),
    Kind("tied_l2", attention(TiedL2Attention), lipschitz=ALL_NORMS),
    Kind("tied_l2_one_head", attention(TiedL2Attention, heads=1), lipschitz=ALL_NORMS),
    Kind("tied_l2_four_heads", attention(TiedL2Attention, heads=4), lipschitz=ALL_NORMS),
    Kind("tied_l2_sigma_reparam", sigma_reparametrised(attention(TiedL2Attention)), lipschitz=ALL_NORMS),
    Kind("tied_l2_matched", attention(TiedL2Attention, columns=2), lipschitz=ALL_NORMS),
    *(
        Kind(
            f"contractive_l2_{p}",
            attention(ContractiveL2Attention, p=p),
            lipschitz=ALL_NORMS,
            contracts={p: 0.97},
        )
        for p in ALL_NORMS
    ),
    Kind(
        "tied_l2_local",
        causal_only(attention(TiedL2Attention, locality=0.5)),
        equivariant=False,
        lipschitz=ALL_NORMS,
    ),
    *(
        Kind(
            f"contractive_l2_{p}_local",
            causal_only(attention(ContractiveL2Attention, p=p, locality=0.5)),
            equivariant=False,
            lipschitz=ALL_NORMS,
            contracts={p: 0.97},
            combined=True,
        )
        for p in ALL_NORMS
    ),
    Kind(
        "contractive_l2_decoupled",
        attention(ContractiveL2DecoupledAttention, **PLAIN),
        lipschitz=ALL_NORMS,
        contracts={"mixed": 0.97},
    ),
    Kind(
        "contractive_l2_decoupled_local",
        causal_only(attention(ContractiveL2DecoupledAttention, temperature=1.0, locality=0.5)),
        equivariant=False,
        lipschitz=ALL_NORMS,
        contracts={"mixed": 0.97},
    ),
    Kind("contractive_l2_blocks", attention(ContractiveL2BlocksAttention, **PLAIN), lipschitz=ALL_NORMS),
    Kind(
        "contractive_l2_blocks_local",
        causal_only(attention(ContractiveL2BlocksAttention, temperature=1.0, locality=0.5)),
        equivariant=False,
        lipschitz=ALL_NORMS,
    ),
    # An eps that tokens of size one can get near, for the attacks.
    Kind("layer_norm", token_wise(LayerNorm, eps=0.1), fused=False, lipschitz=ALL_NORMS),
    Kind("rms_norm", token_wise(RMSNorm, eps=0.1), fused=False, lipschitz=ALL_NORMS),
    Kind("center_norm", token_wise(CenterNorm), fused=False, lipschitz=ALL_NORMS),
    Kind("act_norm", token_wise(ActNorm, max_scale=10), fused=False, lipschitz=ALL_NORMS),
    Kind("no_norm", token_wise(NoNorm), fused=False, lipschitz=ALL_NORMS, climbs=False),
    Kind("relu", token_wise(FeedForward, activation="relu"), fused=False, lipschitz=ALL_NORMS),
    Kind("gelu", token_wise(FeedForward, activation="gelu"), fused=False, lipschitz=ALL_NORMS),
    Kind(
        "contractive_feedforward",
        token_wise(ContractiveFeedForward, activation="gelu"),
        fused=False,
        lipschitz=ALL_NORMS,
        contracts={2: 0.97, "mixed": 0.97},
    ),
    Kind(
        "no_feedforward",
        token_wise(NoFeedForward),
        fused=False,
        lipschitz=ALL_NORMS,
        contracts=dict.fromkeys(ALL_NORMS, 0.0),
        climbs=False,
    ),
    *(
        Kind(name, residual(kind, branch, norm, **keywords), fused=False, lipschitz=ALL_NORMS, combined=True)
        for name, kind, branch, norm, keywords in [
            ("post_norm", PostNorm, attention(TiedL2Attention, fused=False), functools.partial(LayerNorm, eps=0.1), {}),
            ("pre_norm", PreNorm, attention(TiedL2Attention, fused=False), RMSNorm, {}),
            (
                "pre_norm_dot_product",
                PreNorm,
                attention(DotProductAttention, fused=False),
                functools.partial(LayerNorm, eps=0.1),
                {},
            ),
            (
                "invertible_decoupled",
                InvertibleResidual,
                attention(ContractiveL2DecoupledAttention, fused=False, **PLAIN),
                functools.partial(ActNorm, max_scale=10),
                {},
            ),
            (
                "invertible_blocks",
                InvertibleResidual,
                attention(ContractiveL2BlocksAttention, fused=False, **PLAIN),
                NoNorm,
                {},
            ),
            ("weighted", WeightedResidual, attention(TiedL2Attention, fused=False), CenterNorm, {"layers": 3}),
            ("convex", ConvexResidual, attention(ContractiveL2Attention, fused=False), NoNorm, {"layers": 3}),
        ]
    ),
]
