"""The recurrent model of characters."""

import math

import pytest
import torch

from lipformer.models.lstm import GATES, CharLSTM


@pytest.fixture
def model():
    torch.manual_seed(0)
    return CharLSTM(7, width=6, depth=2, context=9).double().eval()


def test_it_computes_the_published_equations(model):
    ids = torch.randint(7, (3, 5))
    x = model.embed(ids)
    for layer in range(2):
        inputs, recurrence, b, bias = (
            getattr(model.lstm, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        h, c, states = torch.zeros(3, 6, dtype=x.dtype), torch.zeros(3, 6, dtype=x.dtype), []
        for t in range(5):
            i, f, g, o = (x[:, t] @ inputs.T + h @ recurrence.T + b + bias).chunk(GATES, dim=-1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            states.append(h)
        x = torch.stack(states, dim=1)
    torch.testing.assert_close(model.encode(ids), x)
    torch.testing.assert_close(model(ids), x @ model.unembedding.weight.T + model.unembedding.bias)


def test_the_past_ignores_the_future_and_padding(model):
    ids = torch.randint(7, (2, 9))
    changed = ids.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 7
    torch.testing.assert_close(model(ids)[:, :5], model(changed)[:, :5], rtol=0, atol=0)
    torch.testing.assert_close(model(ids[:, :5]), model(ids)[:, :5])


def test_it_reads_longer_sequences_than_it_was_trained_on(model):
    assert model(torch.zeros(1, 30, dtype=torch.long)).shape == (1, 30, 7)


def test_it_begins_with_orthogonal_recurrences_and_open_forget_gates():
    model = CharLSTM(7, width=6, depth=2, context=9, forget_bias=1.5)
    for layer in range(2):
        for gate in getattr(model.lstm, f"weight_hh_l{layer}").chunk(GATES):
            torch.testing.assert_close(gate @ gate.T, torch.eye(6))
        for gate in getattr(model.lstm, f"weight_ih_l{layer}").chunk(GATES):
            assert gate.abs().max() <= math.sqrt(6 / 12)
        biases = getattr(model.lstm, f"bias_ih_l{layer}") + getattr(model.lstm, f"bias_hh_l{layer}")
        assert biases.tolist() == [0.0] * 6 + [1.5] * 6 + [0.0] * 12


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.filterwarnings("error")
def test_dropout_is_of_every_layer_and_of_training_alone(depth):
    model = CharLSTM(7, width=64, depth=depth, context=9, dropout=0.5)
    ids = torch.zeros(1, 9, dtype=torch.long)
    assert 0.3 < (model.encode(ids) == 0).float().mean() < 0.7
    assert (model.lstm.dropout > 0) == (depth > 1)
    model.eval()
    assert (model.encode(ids) != 0).all()


def test_it_claims_no_constant(model):
    for p in (2, math.inf, "mixed"):
        assert model.lipschitz_bound(p) == math.inf
    assert "theorem" in model.caveat
    with pytest.raises(ValueError, match="p"):
        model.lipschitz_bound(3)
