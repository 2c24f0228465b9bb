"""Norms, above all the one that its first training batch sets."""

import functools
import math
import threading

import pytest
import torch
from programs import train, write_text

from lipformer.modules.attention import ContractiveL2BlocksAttention
from lipformer.modules.normalisations import ActNorm, CenterNorm, LayerNorm, NoNorm, RMSNorm
from lipformer.modules.residual import InvertibleResidual

F64 = torch.float64


def tokens(batch=4, length=5, width=3):
    """Channels of different mean and size."""
    torch.manual_seed(0)
    x = torch.randn(batch, length, width, dtype=F64)
    return x * 10.0 ** torch.arange(-1, width - 1) + torch.arange(width)


def first_batch(x, **keywords):
    norm = ActNorm(x.shape[-1], **keywords).to(x.dtype).train()
    return norm, norm(x)


def test_act_norm_normalises_the_first_training_batch():
    _, y = first_batch(tokens())
    torch.testing.assert_close(y.mean((0, 1)), torch.zeros(3, dtype=F64), rtol=0, atol=1e-12)
    torch.testing.assert_close(y.var((0, 1), correction=0), torch.ones(3, dtype=F64), rtol=1e-12, atol=0)


def test_act_norm_is_set_once_and_never_in_eval_mode():
    x = tokens()
    norm = ActNorm(3).double().eval()
    assert torch.equal(norm(x), x)
    assert norm.caveat
    norm.train()(x)
    assert not norm.caveat
    before = [weight.clone() for weight in norm.parameters()]
    norm(5 * x + 3)
    norm.eval()(7 * x)
    assert all(torch.equal(one, two) for one, two in zip(before, norm.parameters(), strict=True))


def test_act_norm_remembers_that_it_was_set():
    norm, y = first_batch(tokens())
    other = ActNorm(3).double().train()
    other.load_state_dict(norm.state_dict())
    assert torch.equal(other(tokens()), y)
    other(9 * tokens())
    assert torch.equal(other.log_scale, norm.log_scale)


@pytest.mark.parametrize("offset", [0.0, 100.0, 1e6])
def test_act_norm_leaves_empty_channels_alone(offset):
    """A channel that is constant up to the rounding of float32 is not a signal, however large the constant."""
    torch.manual_seed(0)
    x = torch.randn(4, 50, 2)
    x[..., 1] = offset * (1 + 3e-8 * torch.randn(4, 50))
    norm, y = first_batch(x)
    assert norm.scale()[1] == 1
    assert y[..., 1].abs().max() <= 1e-6 * offset
    assert y[..., 0].std(correction=0).item() == pytest.approx(1, rel=1e-4)


def test_act_norm_finds_small_signals_beside_large_means():
    """From deviations: squares would leave their rounding, ten times the signal."""
    torch.manual_seed(0)
    signal = torch.randn(4, 50, 1, dtype=F64)
    _, y = first_batch(1e4 + 0.1 * signal)
    torch.testing.assert_close(y, (signal - signal.mean()) / signal.std(correction=0), rtol=0, atol=1e-6)


def test_act_norm_amplifies_what_a_contractive_branch_writes_into_a_blank_channel():
    torch.manual_seed(0)
    branch = ContractiveL2BlocksAttention(8, 2, context=6).double()
    block = InvertibleResidual(branch, ActNorm, 8).double().train()
    x = torch.cat([torch.randn(5, 6, 4, dtype=F64), torch.zeros(5, 6, 4, dtype=F64)], -1)
    y = block(x)
    assert 1e-4 < branch(x)[..., 4:].std() < 0.3
    torch.testing.assert_close(y.std((0, 1), correction=0), torch.ones(8, dtype=F64))
    assert block.norm.lipschitz_bound() > 3


def test_act_norm_has_a_limit_that_can_be_left_again():
    norm, _ = first_batch(tokens(), max_scale=2.0)
    torch.testing.assert_close(norm.scale().max(), torch.tensor(2.0, dtype=F64))
    assert norm.lipschitz_bound().item() == pytest.approx(2)
    norm(tokens()).square().sum().backward()
    assert norm.log_scale.grad.abs().min() > 0  # of the limited channel too
    with torch.no_grad():
        norm.log_scale.fill_(1e4)
    assert norm.lipschitz_bound().item() == pytest.approx(2)
    norm.zero_grad()
    norm(tokens()).sum().backward()
    assert norm.log_scale.grad.isfinite().all()
    assert norm.log_det(tokens()).isfinite().all()


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan])
def test_act_norm_needs_a_positive_limit(limit):
    with pytest.raises(ValueError, match=r"max_scale=.*: it must be above 0"):
        ActNorm(3, max_scale=limit)


def test_act_norm_waits_for_a_finite_batch():
    norm = ActNorm(2).train()
    norm(torch.full((1, 3, 2), math.inf))
    assert not norm.initialised
    norm(torch.randn(2, 3, 2))
    assert norm.initialised
    assert all(weight.isfinite().all() for weight in norm.parameters())


@pytest.mark.parametrize("max_scale", [None, 1.5])
def test_act_norm_is_inverted_and_its_determinant_is_known(max_scale):
    x = tokens()
    norm, y = first_batch(x, max_scale=max_scale)
    torch.testing.assert_close(norm.invert(y), x, rtol=1e-12, atol=1e-12)
    jac = torch.autograd.functional.jacobian(lambda t: norm(t[None])[0], x[0]).reshape(15, 15)
    expected = torch.linalg.slogdet(jac).logabsdet.expand(4)
    torch.testing.assert_close(norm.log_det(x), expected)


def test_ranks_share_their_statistics(monkeypatch):
    """Two threads stand for two ranks; all_reduce sums what both bring. Their batches differ in size."""
    barrier, shares = threading.Barrier(2), {}

    def all_reduce(tensor):
        shares[threading.get_ident()] = tensor.clone()
        barrier.wait(60)
        total = sum(shares[name] for name in sorted(shares))
        barrier.wait(60)
        tensor.copy_(total)

    monkeypatch.setattr(torch.distributed, "is_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    x = tokens(batch=6)
    norms = [ActNorm(3).double().train() for _ in range(2)]
    parts = [x[:2], 1.0 * x[2:]]
    threads = [threading.Thread(target=norm, args=(part,)) for norm, part in zip(norms, parts, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    whole, _ = first_batch(x)
    for norm in norms:
        assert norm.initialised
        torch.testing.assert_close(norm.log_scale, whole.log_scale)
        torch.testing.assert_close(norm.bias, whole.bias)
    assert torch.equal(norms[0].log_scale, norms[1].log_scale)


def test_a_continued_run_does_not_set_it_again(tmp_path, monkeypatch):
    calls = []
    original = ActNorm._initialise

    def counted(self, x):
        calls.append(self)
        original(self, x)

    monkeypatch.setattr(ActNorm, "_initialise", counted)
    text = write_text(tmp_path / "text.txt")
    options = ("residual=invertible", "norm=act_norm", "feedforward=none", "attention=contractive_l2_blocks")
    run = tmp_path / "run"
    assert train(monkeypatch, *options, f"data.train={text}", f"hydra.run.dir={run}") == 0
    assert len(calls) == 2  # of a block's two residuals
    more = ("trainer.max_steps=5", f"hydra.run.dir={tmp_path / 'more'}")
    assert train(monkeypatch, f"resume={run}", *more) == 0
    assert len(calls) == 2


# --- the others ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm])
def test_output_radius_is_nearly_attained(norm):
    torch.manual_seed(0)
    layer = norm(7).double()
    with torch.no_grad():
        layer.weight[0] = -3.0
        if norm is LayerNorm:
            layer.bias.copy_(torch.randn(7))
    radius = layer.output_radius()
    y = layer(10 * torch.randn(1000, 1, 7, dtype=F64))
    assert y.norm(dim=-1).max() <= radius
    # All of a token's size in the channel with the largest scale.
    one_hot = layer(1e3 * torch.eye(7, dtype=F64)[:1, None])
    assert one_hot.norm() > 0.7 * radius - (0 if norm is RMSNorm else 2 * layer.bias.norm())


@pytest.mark.parametrize("norm", [CenterNorm, ActNorm, NoNorm])
def test_linear_norms_have_no_output_radius(norm):
    layer = norm(3).eval()
    assert layer.output_radius() == math.inf
    assert layer(1e6 * torch.randn(1, 2, 3)).norm() > 1e5


def test_center_norm_centers():
    layer = CenterNorm(4).double()
    x = torch.randn(2, 3, 4, dtype=F64)
    y = layer(x)
    torch.testing.assert_close(y.mean(-1), torch.zeros(2, 3, dtype=F64), rtol=0, atol=1e-12)
    torch.testing.assert_close(y, 4 / 3 * (x - x.mean(-1, keepdim=True)))
    with pytest.raises(ValueError, match="at least 2 features"):
        CenterNorm(1)


def test_no_norm_is_the_identity():
    norm, x = NoNorm(3), torch.randn(2, 4, 3)
    assert torch.equal(norm(x), x)
    assert torch.equal(norm.invert(x), x)
    assert torch.equal(norm.log_det(x), torch.zeros(2))


@pytest.mark.parametrize(
    "make", [LayerNorm, RMSNorm, CenterNorm, functools.partial(ActNorm, max_scale=4.0), ActNorm, NoNorm]
)
def test_autocast_and_half_precision(make):
    torch.manual_seed(0)
    norm, x = make(8).train(), torch.randn(2, 5, 8)
    reference = norm(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(norm(x.bfloat16()).float(), reference, rtol=0.03, atol=0.03)
    assert norm.bfloat16()(x.bfloat16()).dtype == torch.bfloat16
