"""The Transformer around the attention."""

import functools
import math

import pytest
import torch
from jacobians import NORMS, jacobian
from programs import train, write_text

from lipformer.assembly.checkpoint import load_run
from lipformer.models.transformer import CharTransformer
from lipformer.modules.attention import (
    ContractiveL2Attention,
    ContractiveL2BlocksAttention,
    ContractiveL2DecoupledAttention,
    DotProductAttention,
)
from lipformer.modules.contexts import explicit
from lipformer.modules.embedding import TokenEmbedding
from lipformer.modules.feedforward import ContractiveFeedForward, FeedForward
from lipformer.modules.linear import dense, sigma_reparam
from lipformer.modules.normalisations import ActNorm, LayerNorm, NoNorm, RMSNorm
from lipformer.modules.position import LearnedPosition, SinusoidalPosition, sinusoids
from lipformer.modules.residual import InvertibleResidual, PostNorm, PreNorm

V = 11


def build(**changes):
    options = {
        "width": 16,
        "heads": 2,
        "depth": 2,
        "context": 12,
        "attention": DotProductAttention,
        "norm": LayerNorm,
        "residual": PreNorm,
        "feedforward": functools.partial(FeedForward, activation="relu", expansion=2),
        "position": LearnedPosition,
        "embedding": TokenEmbedding,
        "linear": dense,
    }
    torch.manual_seed(0)
    return CharTransformer(V, **{**options, **changes}).double().eval()


@pytest.mark.parametrize("residual", [PreNorm, PostNorm])
@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm, NoNorm])
def test_logits_depend_on_the_past_alone(residual, norm):
    model = build(residual=residual, norm=norm)
    ids = torch.randint(V, (3, 9))
    other = ids.clone()
    other[:, 5:] = (other[:, 5:] + 1) % V
    one, two = model(ids), model(other)
    assert one.shape == (3, 9, V)
    torch.testing.assert_close(one[:, :5], two[:, :5], rtol=1e-12, atol=1e-12)
    assert (one[:, 5:] - two[:, 5:]).abs().amin(-1).max() > 1e-6


def test_a_sentence_alone_and_padded_in_a_batch_are_the_same():
    model = build()
    ids = torch.randint(V, (4, 12))
    torch.testing.assert_close(model(ids)[1:2, :7], model(ids[1:2, :7]), rtol=1e-12, atol=1e-12)


def test_post_norm_is_the_original_order():
    class Double(torch.nn.Module):
        def forward(self, x):
            return 2 * x

    x = torch.randn(2, 3, 8)
    torch.testing.assert_close(PostNorm(Double(), LayerNorm, 8)(x), torch.nn.functional.layer_norm(3 * x, (8,)))
    torch.testing.assert_close(PreNorm(Double(), LayerNorm, 8)(x), x + 2 * torch.nn.functional.layer_norm(x, (8,)))


def test_pre_norm_alone_has_a_final_norm():
    assert isinstance(build(residual=PreNorm).final_norm, LayerNorm)
    assert isinstance(build(residual=PostNorm).final_norm, torch.nn.Identity)


@pytest.mark.parametrize(
    ("attention", "position", "limit"),
    [
        (DotProductAttention, LearnedPosition, 12),
        (DotProductAttention, SinusoidalPosition, None),
        (ContractiveL2Attention, SinusoidalPosition, 12),
    ],
)
def test_longest_input(attention, position, limit):
    model = build(attention=attention, position=position)
    assert model.longest_input == limit
    ids = torch.randint(V, (1, 13))
    if limit is None:
        assert model(ids).shape == (1, 13, V)
    else:
        with pytest.raises(ValueError, match=r"13 tokens is longer than the .*12"):
            model(ids)


def test_sinusoids_are_those_of_the_paper():
    table = sinusoids(20, 6).double()
    for n in (0, 3, 19):
        for i in range(3):
            angle = torch.tensor(n * 10000 ** (-2 * i / 6), dtype=torch.float64)
            torch.testing.assert_close(table[n, 2 * i], angle.sin(), rtol=0, atol=1e-6)
            torch.testing.assert_close(table[n, 2 * i + 1], angle.cos(), rtol=0, atol=1e-6)
    assert sinusoids(4, 5).shape == (4, 5)


def test_unknown_activation_is_named():
    with pytest.raises(ValueError, match="activation=tanh: it must be one of relu, gelu"):
        FeedForward(4, activation="tanh")


# --- blank channels --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [LearnedPosition, SinusoidalPosition])
def test_channels_that_are_not_filled_are_blank(position):
    model = build(embedding=functools.partial(TokenEmbedding, filled=0.25), position=position)
    x = model.embed(torch.randint(V, (3, 9)))
    assert x.shape == (3, 9, 16)
    assert (x[..., 4:] == 0).all()
    assert (x[..., :4] != 0).all()


# --- the bijective trunk ---------------------------------------------------------------------------------------

INVERTIBLE = {
    "residual": InvertibleResidual,
    "norm": ActNorm,
    "feedforward": functools.partial(ContractiveFeedForward, activation="gelu", expansion=2),
    "embedding": functools.partial(TokenEmbedding, filled=0.5),
}
CONTRACTIVE = pytest.mark.parametrize("attention", [ContractiveL2DecoupledAttention, ContractiveL2BlocksAttention])


def build_invertible(**changes):
    """With norms set by a first batch, as training does."""
    model = build(**{**INVERTIBLE, **changes}).train()
    with torch.no_grad():
        model(torch.randint(V, (8, 10)))
    return model.eval()


@CONTRACTIVE
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_a_trunk_of_twelve_blocks_is_inverted(attention, dtype, error):
    model = build_invertible(attention=attention, depth=12, width=32, heads=4).to(dtype)
    x = model.embed(torch.randint(V, (2, 10))).detach()
    solution = model.invert(model.trunk(x).detach())
    assert solution.converged
    assert (solution.x - x).abs().max() < error * x.abs().max()
    assert solution.residual.max() < error * x.abs().max()
    assert solution.iterations > 5


@CONTRACTIVE
def test_log_det_of_the_trunk(attention):
    model = build_invertible(attention=attention, depth=2, width=8)
    x = model.embed(torch.randint(V, (2, 4))).detach()
    with explicit(model):
        matrix = jacobian(model.trunk, x).detach().flatten(-2).flatten(1, 2)
    torch.testing.assert_close(model.log_det(x).detach(), torch.linalg.slogdet(matrix).logabsdet)


@pytest.mark.parametrize("call", ["invert", "log_det"])
def test_other_trunks_are_not_inverted(call):
    with pytest.raises(TypeError, match="PreNorm is not invertible: build the model with residual=invertible"):
        getattr(build(), call)(torch.randn(1, 3, 16, dtype=torch.float64))


def test_certificate_of_the_trunk_exceeds_its_jacobians():
    torch.manual_seed(0)
    for changes in (
        {**INVERTIBLE, "attention": ContractiveL2BlocksAttention},
        {"norm": functools.partial(LayerNorm, eps=0.1)},
        {"residual": PostNorm, "norm": functools.partial(LayerNorm, eps=0.1), "attention": ContractiveL2Attention},
    ):
        model = build(width=8, depth=1, **changes)
        x = 10 ** (2 * torch.rand(6, 1, 1, dtype=torch.float64) - 1) * torch.randn(6, 5, 8, dtype=torch.float64)
        with explicit(model):
            jac = jacobian(model.trunk, x).detach()
        for p, norm in NORMS.items():
            assert norm(jac).max() <= model.lipschitz_bound(p, length=5) < math.inf
            assert model.lipschitz_bound(p, length=5) <= model.lipschitz_bound(p)


def test_reparametrised_weights_leave_orthogonal_heads_alone():
    """Their contraction rests on it, whatever a learned gain of the other weights does."""
    model = build_invertible(attention=ContractiveL2BlocksAttention, linear=sigma_reparam)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("gamma"):
                weight.mul_(10)
    bounds = [
        layer.branch.contraction_bound() for block in model.blocks for layer in (block.attention, block.feedforward)
    ]
    assert max(bounds) < 1
    assert any(name.endswith("gamma") for name, _ in model.named_parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("attention=dot_product", "norm=none", "feedforward=none"), "which DotProductAttention is not"),
        (("attention=contractive_l2", "norm=layer_norm", "feedforward=none"), "which LayerNorm is not"),
        (("attention=contractive_l2", "norm=none", "feedforward=relu"), "which FeedForward is not"),
    ],
)
def test_training_refuses_what_cannot_be_inverted_in_one_line(options, message, tmp_path, monkeypatch, capsys):
    arguments = (f"data.train={write_text(tmp_path / 'text.txt')}", f"hydra.run.dir={tmp_path / 'run'}")
    assert train(monkeypatch, "residual=invertible", *options, *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert "take " in line


def test_checkpoints_older_than_the_groups_load(tmp_path, monkeypatch):
    """Written before there were these groups: what they are without is what they then were."""
    run, options = tmp_path / "run", ("embedding=full", "linear=dense", "regularizer=none", "trainer.max_steps=1")
    arguments = (f"data.train={write_text(tmp_path / 'text.txt')}", f"hydra.run.dir={run}")
    assert train(monkeypatch, *options, *arguments) == 0
    path = run / "checkpoints" / "last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    for group in ("model", "embedding", "linear", "regularizer"):
        del checkpoint["lipformer"]["config"][group]
    torch.save(checkpoint, tmp_path / "old.ckpt")
    ids = torch.randint(5, (1, 8))
    assert torch.equal(load_run(tmp_path / "old.ckpt").model(ids), load_run(path).model(ids))


def test_the_inverse_takes_features_not_ids_or_logits():
    model = build_invertible(attention=ContractiveL2DecoupledAttention)
    ids = torch.randint(V, (2, 5))
    for wrong in (ids, model(ids), model.embed(ids)[0]):
        for call in (model.invert, model.log_det):
            with pytest.raises(ValueError, match=r"expected tokens of shape \(B, N, 16\)"):
                call(wrong)
