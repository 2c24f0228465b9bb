"""Contraction by normalised factors: in the mixed norm (decoupled), in the norm of head blocks (blocks)."""

import math

import pytest
import torch
from factored_attacks import (
    ROUNDED,
    attack_at_random,
    attack_by_ascent,
    build,
    contraction_norm,
    head_basis,
    norm_block,
)
from jacobians import NORMS, jacobian, norm_mixed
from test_laws import TOKENS, WIDTH, random_tokens, randomise

from lipformer import theorems
from lipformer.functional import spectral
from lipformer.modules.attention import (
    ContractiveL2Attention,
    ContractiveL2BlocksAttention,
    ContractiveL2DecoupledAttention,
    TiedL2Attention,
)
from lipformer.modules.normalisations import NoNorm
from lipformer.modules.residual import InvertibleResidual

KINDS = pytest.mark.parametrize("kind", [ContractiveL2DecoupledAttention, ContractiveL2BlocksAttention])
LOCALITY = pytest.mark.parametrize("locality", [None, 0.5])
F64 = torch.float64


@KINDS
@LOCALITY
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_random_jacobians_contract(kind, locality, heads):
    attack_at_random(kind, {"locality": locality, "heads": heads}, weights=4, inputs=8)


@KINDS
@LOCALITY
def test_ascent_does_not_exceed_the_contraction(kind, locality):
    assert attack_by_ascent(kind, {"locality": locality}, attempts=4, steps=15) > 0.3  # it has teeth


@pytest.mark.slow
@KINDS
@LOCALITY
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_contraction_under_heavy_attack(kind, locality, heads):
    """10,000 random and 100 adversarially ascended Jacobians."""
    options = {"locality": locality, "heads": heads}
    attack_at_random(kind, options, weights=200, inputs=50)
    attack_by_ascent(kind, options, attempts=100, steps=300)


@KINDS
@LOCALITY
def test_temperature_is_free(kind, locality):
    """Over twelve decades the constant stays what it is, and the Jacobians below it; the layer does change."""
    generator = torch.Generator().manual_seed(3)
    layer = build(kind, locality=locality)
    bound, x = layer.contraction_bound(), random_tokens(generator, 12)
    for _ in range(8):
        with torch.no_grad():
            layer.log_temperature.copy_((12 * torch.rand(2, generator=generator) - 6) * math.log(10))
        assert layer.contraction_bound() == bound
        assert contraction_norm(layer, jacobian(layer, x).detach()).max() <= bound * (1 + 1e-9)
    near, outputs = torch.randn(2, TOKENS, WIDTH, dtype=F64), []
    for log_temperature in (-14.0, 14.0):
        with torch.no_grad():
            layer.log_temperature.fill_(log_temperature)
            outputs.append(layer(near))
    assert (outputs[0] - outputs[1]).norm() > 0.1 * outputs[1].norm()


def test_blocks_attain_their_constant_but_for_c():
    """One token, of which f is linear: orthogonal, times scale / (4c + 1)."""
    layer = build(width=8, heads=8, scale=0.99)
    x = torch.zeros(1, 1, 8, dtype=F64)  # one token: f is linear, and its bounds are attained
    jac = jacobian(layer, x) * theorems.head_constant(TOKENS)
    torch.testing.assert_close(norm_block(layer, jac)[0], jac.new_tensor(0.99), rtol=1e-6, atol=0)
    # Of many tokens each head may listen to another, so in the mixed norm there is a certificate with sqrt(H) alone.
    assert layer.lipschitz_bound("mixed") > 1 > layer.contraction_bound()
    assert layer.lipschitz_bound("mixed") <= math.sqrt(8) * 0.99 * ROUNDED


def test_each_head_writes_where_the_one_half_a_turn_on_reads():
    layer = build(width=8, heads=4)
    x = torch.randn(2, TOKENS, 8, dtype=F64)
    for head in range(4):
        with torch.no_grad():
            layer.value_map.zero_()[head] = torch.eye(2)
        written = (layer(x) @ head_basis(layer)).unflatten(-1, (4, 2)).square().sum((0, 1, 3)).sqrt()
        assert written[(head + 2) % 4] > 0.01
        assert (written.sum() - written[(head + 2) % 4]) < 1e-6  # orthogonal as float32 has it


@LOCALITY
def test_one_token_and_orthogonal_factors_attain_the_decoupled_constant(locality):
    """At N = context = 1, c = 0, and all heads copy their token: nothing is lost but the slack of the norms."""
    layer = build(ContractiveL2DecoupledAttention, context=1, locality=locality)
    reached = norm_mixed(jacobian(layer, torch.zeros(1, 1, WIDTH, dtype=F64)))
    assert 0.95 * layer.scale / math.sqrt(2) <= reached <= layer.contraction_bound() <= layer.scale


# --- learning --------------------------------------------------------------------------------------------------


@KINDS
@LOCALITY
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_steps_of_one_leave_contraction_and_orthogonality(kind, locality, optimizer):
    torch.manual_seed(0)
    layer = kind(16, 4, context=6, locality=locality)
    steps = optimizer(layer.parameters(), lr=1.0)
    for _ in range(25):
        x = torch.randn(4, 6, 16)
        loss = (layer(x) - x.roll(1, 1)).square().mean() * 100
        steps.zero_grad()
        loss.backward()
        steps.step()
        assert loss.isfinite()
        assert layer.contraction_bound() <= layer.scale * ROUNDED
        if kind is ContractiveL2BlocksAttention:
            basis = head_basis(layer).detach()
            torch.testing.assert_close(basis.mT @ basis, torch.eye(16, dtype=F64), rtol=0, atol=1e-5)


def test_orthogonal_for_skew_matrices_of_any_size():
    """Also of rank two, where the solved system is worst conditioned."""
    torch.manual_seed(0)
    layer = ContractiveL2BlocksAttention(16, 4, context=6)
    parameter = layer.query.parametrizations.weight.original
    for size in (1e-3, 1.0, 1e3):
        for fresh in (torch.randn(16, 16), torch.randn(16, 1) * torch.randn(1, 16)):
            with torch.no_grad():
                parameter.copy_(size * fresh)
            assert layer.contraction_bound() <= layer.scale * 1.001 < 1


@KINDS
@LOCALITY
@pytest.mark.parametrize("fused", [True, False])
def test_gradient_reaches_all_weights(kind, locality, fused):
    torch.manual_seed(0)
    layer = kind(16, 2, context=6, locality=locality, fused=fused)
    with torch.no_grad():
        layer.value_map += 0.3 * torch.randn_like(layer.value_map)
    layer(torch.randn(2, 6, 16)).sin().sum().backward()
    for name, weight in layer.named_parameters():
        assert weight.grad.isfinite().all(), name
        assert weight.grad.norm() > 0, name


@KINDS
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", ["value_map", "query", "out"])
def test_zero_weights(kind, fused, name):
    if kind is ContractiveL2BlocksAttention and name != "value_map":
        pytest.skip("its query and output are orthogonal whatever their parameter is")
    torch.manual_seed(0)
    layer = kind(8, 2, context=6)
    with torch.no_grad():
        (layer.value_map if name == "value_map" else getattr(layer, name).weight).zero_()
    x = torch.randn(2, 6, 8, requires_grad=True)
    y = layer(x, fused=fused)
    (y - 1).square().sum().backward()
    assert (y == 0).all()
    assert x.grad.isfinite().all()
    assert all(weight.grad.isfinite().all() for weight in layer.parameters())
    assert layer.contraction_bound() == 0
    if name != "query":  # with nothing to see, values are zero too: so is a tied layer's gradient
        weight = layer.value_map if name == "value_map" else layer.out.weight
        assert weight.grad.norm() > 0


@KINDS
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("value", [-1e3, 1e3])
@pytest.mark.parametrize("name", ["log_slope", "log_temperature"])
def test_extreme_slopes_and_temperatures(kind, fused, value, name):
    torch.manual_seed(0)
    layer = kind(8, 2, context=6, locality=1.0)
    with torch.no_grad():
        getattr(layer, name).fill_(value)
    x = torch.randn(2, 6, 8, requires_grad=True)
    y = layer(x, fused=fused)
    (y - 1).square().sum().backward()
    assert y.isfinite().all()
    assert y.norm() > 0
    assert x.grad.isfinite().all()
    assert all(weight.grad.isfinite().all() for weight in layer.parameters())
    assert layer.contraction_bound() <= layer.scale
    if (name, value) == ("log_slope", 1e3):  # each token sees itself alone
        torch.testing.assert_close(layer(x[:, 3:4], fused=fused), y[:, 3:4])


@pytest.mark.parametrize("p", ["mixed", 2, math.inf])
@pytest.mark.parametrize("size", [0.0, 1e-12, 1e7])
def test_extreme_weights_of_the_local_layer_that_divides_by_its_bound(p, size):
    torch.manual_seed(0)
    layer = ContractiveL2Attention(8, 2, context=6, p=p, locality=1.0)
    assert layer.value_maps().dtype == torch.float32
    with torch.no_grad():
        for name in ("query", "value", "out"):
            getattr(layer, name).weight.mul_(size)
    y = layer(torch.randn(2, 6, 8))
    y.sum().backward()
    assert y.isfinite().all()
    assert all(weight.grad.isfinite().all() for weight in layer.parameters())
    assert layer.lipschitz_bound(p) <= layer.scale


@KINDS
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["value_map", "log_slope"])
def test_weights_that_are_not_finite_have_no_certificate(kind, value, name):
    layer = build(kind, locality=1.0)
    getattr(layer, name).data[0] = value
    if name == "log_slope" and value == math.inf:
        assert layer.contraction_bound() <= layer.scale  # the largest slope
    else:
        assert layer.contraction_bound() == math.inf
        assert all(layer.lipschitz_bound(p) == math.inf for p in NORMS)


# --- dropout, precision, devices -------------------------------------------------------------------------------


@KINDS
def test_it_contracts_under_dropout_too(kind):
    layer = build(kind, dropout=0.4)
    assert layer.contraction_bound() <= 0.6 * layer.scale  # eval mode
    layer.train()
    bound = layer.contraction_bound()
    assert 0.6 * layer.scale < bound <= layer.scale * ROUNDED
    generator = torch.Generator().manual_seed(4)
    for _ in range(10):
        randomise(layer, generator)
        x = random_tokens(generator, 1)[0]

        def one_mask(tokens):
            return layer(tokens[None], fused=False)[0]

        jac = torch.autograd.functional.jacobian(one_mask, x)  # one forward pass, so one mask
        assert contraction_norm(layer, jac) <= layer.contraction_bound() * (1 + 1e-9)


def test_a_mask_of_features_would_expand_blocks():
    """Why blocks drop coordinates in the basis of the heads."""
    layer = build()
    masks = torch.tensor([[float(i >> k & 1) for k in range(WIDTH)] for i in range(2**WIDTH)], dtype=F64)
    jac = torch.diag_embed(masks)[:, None, :, None, :]
    assert norm_block(layer, jac).max() > 1.05


@KINDS
@LOCALITY
@pytest.mark.parametrize("fused", [True, False])
def test_half_precision_stays_near(kind, locality, fused):
    torch.manual_seed(0)
    layer = kind(32, 4, context=8, locality=locality)
    x = 2 * torch.randn(3, 8, 32)
    reference = layer(x, fused=fused)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        near = layer(x, fused=fused)
        assert layer.contraction_bound() == layer_bound_outside_autocast(layer)
    assert near.dtype == torch.bfloat16
    assert (near.float() - reference).norm() < 0.02 * reference.norm()
    whole = layer.bfloat16()
    assert whole(x.bfloat16(), fused=fused).dtype == torch.bfloat16
    assert (whole(x.bfloat16(), fused=fused).float() - reference).norm() < 0.05 * reference.norm()
    assert whole.contraction_bound() < 1


def layer_bound_outside_autocast(layer):
    with torch.autocast("cpu", enabled=False):
        return layer.contraction_bound()


@LOCALITY
def test_constants_go_where_the_weights_are(locality):
    """The constant of a head comes from the CPU, the weights may not: here from a device that only has shapes."""
    # inf_norm stands in for a 2-norm, which that device has not.
    slope = None if locality is None else torch.ones(2, device="meta")
    query, maps = torch.ones(2, 4, 2, device="meta"), torch.ones(2, 2, 2, device="meta")
    out = torch.ones(4, 4, device="meta")
    for bound in (
        theorems.tied_l2_bound_mixed(query, maps, out, 6, spectral.inf_norm, slope),
        theorems.tied_l2_bound_inf(query, maps, out, 6, slope),
        theorems.kim_bound_2(query, query, out, 6, None, spectral.inf_norm, slope),
        theorems.kim_bound_inf(query, query, out, 6, None, slope),
        theorems.tied_l2_bound_blocks(query, maps, query, 6, spectral.inf_norm, slope),
    ):
        assert bound.device.type == "meta"
        assert bound.dtype == torch.float32


# --- refusals and lengths --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [TiedL2Attention, ContractiveL2Attention, ContractiveL2DecoupledAttention, ContractiveL2BlocksAttention]
)
def test_locality_is_refused_where_it_has_no_theorem(kind):
    with pytest.raises(ValueError, match="locality needs causal attention"):
        kind(8, 2, context=6, causal=False, locality=1.0)
    for locality in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=r"locality=.*: it must be above 0"):
            kind(8, 2, context=6, locality=locality)


@KINDS
def test_refusals(kind):
    layer = kind(8, 2, context=6)
    assert layer.longest_input == 6
    with pytest.raises(ValueError, match="sequence of 7 tokens is longer than the context of 6"):
        layer(torch.randn(1, 7, 8))
    with pytest.raises(ValueError, match="sequence of 7 tokens is longer than the context of 6"):
        layer.lipschitz_bound("mixed", length=7)
    with pytest.raises(ValueError, match="not divisible by heads"):
        kind(8, 3, context=6)
    for scale in (0.0, 1.0, -0.5, math.nan):
        with pytest.raises(ValueError, match=r"scale=.*: it must be above 0 and below 1"):
            kind(8, 2, context=6, scale=scale)
    for temperature in (0.0, -1.0, math.inf):
        with pytest.raises(ValueError, match=r"temperature=.*: it must be above 0"):
            kind(8, 2, context=6, temperature=temperature)


@KINDS
@LOCALITY
def test_length_does_not_change_the_layer(kind, locality):
    layer = build(kind, locality=locality)
    x = torch.randn(2, TOKENS, WIDTH, dtype=F64)
    torch.testing.assert_close(layer(x)[:, :3], layer(x[:, :3]))
    assert layer.lipschitz_bound("mixed", length=3) < layer.lipschitz_bound("mixed")


def test_a_penalty_keeps_more_of_a_long_layer():
    """At a context of 512 the constant of the local layer is that of a window, so what is left of it is larger."""
    gains = {}
    for locality in (None, 1.0):
        torch.manual_seed(0)
        layer = ContractiveL2DecoupledAttention(16, 1, context=512, locality=locality)
        gains[locality] = layer(torch.ones(1, 1, 16)).norm() / 4  # of one token: f is linear
    assert gains[1.0] > 3 * gains[None]


@KINDS
def test_residual_can_be_inverted(kind):
    layer = build(kind, width=8, heads=4, scale=0.97)
    with torch.no_grad():
        layer.value_map.copy_(torch.randn_like(layer.value_map))
        layer.log_temperature.fill_(3.0)
    block = InvertibleResidual(layer, NoNorm, 8)
    x = 3 * torch.randn(2, TOKENS, 8, dtype=F64)
    solution = block.invert(block(x))
    assert solution.converged
    torch.testing.assert_close(solution.x, x, rtol=0, atol=1e-11)
