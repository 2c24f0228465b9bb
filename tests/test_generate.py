import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from lipformer.data.vocabulary import Vocabulary
from lipformer.errors import UsageError
from lipformer.models.generate import draw, keep_top_k, keep_top_p, next_symbol_probabilities, sample

VOCABULARY = Vocabulary(tuple("abcd"))
END = VOCABULARY.end_id


class Scripted(nn.Module):
    """Predicts by position alone: row t of `logits` after t characters; keeps the shapes it was called with."""

    def __init__(self, logits, longest_input=None):
        super().__init__()
        self.logits = nn.Parameter(torch.as_tensor(logits, dtype=torch.float32))
        self.dropout = nn.Dropout(0.5)
        self.context = len(self.logits)
        self.longest_input = longest_input
        self.calls = []

    def forward(self, ids):
        self.calls.append(ids.clone())
        assert (ids[:, 0] == END).all()
        assert (ids[:, 1:] != END).all()
        return self.dropout(self.logits[: ids.shape[1]]).expand(len(ids), -1, -1)


def rows():
    logit = st.floats(-30, 30, width=32)
    return (
        st.integers(2, 12)
        .flatmap(lambda n: st.lists(st.lists(logit, min_size=n, max_size=n), min_size=1, max_size=3))
        .map(torch.tensor)
    )


@given(rows(), st.floats(0.05, 20))
def test_nothing_filtered_is_the_softmax(logits, temperature):
    expected = (logits.double() / temperature).softmax(-1)
    for options in ({}, {"top_k": logits.shape[-1]}, {"top_p": 1.0}):
        found = next_symbol_probabilities(logits, temperature, **options)
        assert found.dtype == torch.float64
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-300)


@given(rows(), st.integers(1, 14))
def test_top_k_keeps_the_k_likeliest(logits, k):
    probabilities = next_symbol_probabilities(logits)
    kept = keep_top_k(probabilities, k)
    assert ((kept > 0).sum(-1) == min(k, logits.shape[-1])).all()
    for before, after in zip(probabilities, kept, strict=True):
        if (after == 0).any():
            assert before[after > 0].min() >= before[after == 0].max()
    torch.testing.assert_close(kept.sum(-1), torch.ones(len(kept), dtype=torch.float64))


@given(rows(), st.floats(0.001, 0.999))
def test_top_p_keeps_the_smallest_set_that_reaches_p(logits, p):
    probabilities = next_symbol_probabilities(logits)
    kept = keep_top_p(probabilities, p)
    for before, after in zip(probabilities, kept, strict=True):
        chosen = before[after > 0]
        assert len(chosen) >= 1
        assert chosen.sum() >= p - 1e-12
        assert chosen.sum() - chosen.min() < p + 1e-12  # one fewer does not reach it
        if (after == 0).any():
            assert chosen.min() >= before[after == 0].max()
        torch.testing.assert_close(after[after > 0], chosen / chosen.sum())


def test_ties_go_to_the_least_id():
    even = torch.full((1, 4), 0.25, dtype=torch.float64)
    assert keep_top_k(even, 2).tolist() == [[0.5, 0.5, 0, 0]]
    assert keep_top_p(even, 0.5).tolist() == [[0.5, 0.5, 0, 0]]
    assert next_symbol_probabilities(torch.zeros(1, 4), 0).tolist() == [[1, 0, 0, 0]]


def test_filters_work_in_order_temperature_top_k_top_p():
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    # Of the two that top-k leaves, the first has 0.5 / 0.8 = 0.625: enough for p = 0.6, which 0.5 is not.
    assert next_symbol_probabilities(logits, top_k=2, top_p=0.6).tolist() == [[1, 0, 0]]
    # A high temperature makes them even before top-p counts.
    assert (next_symbol_probabilities(logits, 1e6, top_p=0.6) > 0).sum() == 2


@given(rows())
def test_temperature_has_its_limits(logits):
    greedy = next_symbol_probabilities(logits, 0)
    assert (greedy.argmax(-1) == logits.argmax(-1)).all()
    assert (greedy.sum(-1) == 1).all()
    assert torch.isfinite(next_symbol_probabilities(logits, 1e-310)).all()
    uniform = torch.full_like(greedy, 1 / logits.shape[-1])
    torch.testing.assert_close(next_symbol_probabilities(logits, 1e9), uniform, rtol=1e-6, atol=0)


def test_half_precision_logits_are_computed_in_float64():
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    torch.testing.assert_close(
        next_symbol_probabilities(logits, 0.7), (logits.double() / 0.7).softmax(-1), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize(
    "options", [{"temperature": -1.0}, {"temperature": math.nan}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}]
)
def test_options_out_of_range(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        next_symbol_probabilities(torch.zeros(1, 3), **options)


def test_a_diverged_model_draws_nothing():
    with pytest.raises(UsageError, match="not finite"):
        sample(Scripted([[math.nan] * 5] * 4), VOCABULARY, samples=1)


def test_frequencies_of_draws_are_the_probabilities():
    probabilities = torch.tensor([0.5, 0.25, 0.0, 0.15, 0.1], dtype=torch.float64)
    count = 20_000
    uniform = torch.from_numpy(np.random.default_rng(0).random(count))
    drawn = torch.bincount(draw(probabilities.expand(count, -1), uniform), minlength=5)
    assert drawn[2] == 0
    likely = probabilities > 0
    test = stats.chisquare(drawn[likely], count * probabilities[likely])
    assert test.pvalue > 0.01


def test_draws_at_the_ends_have_positive_probability():
    probabilities = torch.tensor([[0.0, 0.3, 0.7, 0.0]], dtype=torch.float64)
    for uniform, symbol in ((0.0, 1), (1 - 2.0**-53, 2)):
        assert draw(probabilities, torch.tensor([uniform], dtype=torch.float64)).tolist() == [symbol]


def test_sentences_have_the_models_frequencies():
    logits = np.log([[0.4, 0.3, 0.2, 0.05, 0.05]])
    sentences = sample(Scripted(logits), VOCABULARY, samples=4000, max_chars=1, seed=3)
    counts = [sentences.count(text) for text in ("a", "b", "c", "d", "")]
    assert stats.chisquare(counts, 4000 * np.exp(logits[0])).pvalue > 0.01


def test_greedy_follows_the_model_and_stops_at_the_end_symbol():
    likeliest = [2, 0, 3, END, 1]
    model = Scripted(10 * torch.eye(5)[likeliest])
    assert sample(model, VOCABULARY, samples=2, temperature=0) == ["cad", "cad"]
    assert sample(model, VOCABULARY, samples=1, temperature=0, prompt="b") == ["bad"]
    assert sample(model, VOCABULARY, samples=1, temperature=0, max_chars=2) == ["ca"]
    assert sample(model, VOCABULARY, samples=0) == []


def test_finished_sentences_leave_the_batch():
    model = Scripted(torch.zeros(30, 5))
    sentences = sample(model, VOCABULARY, samples=50, seed=1)
    sizes = [len(ids) for ids in model.calls]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes == [sum(len(sentence) >= step for sentence in sentences) for step in range(len(sizes))]


def test_a_sentence_does_not_depend_on_how_many_there_are():
    model = Scripted(torch.randn(20, 5, generator=torch.Generator().manual_seed(0)))
    many = sample(model, VOCABULARY, samples=20, seed=5)
    assert sample(model, VOCABULARY, samples=3, seed=5) == many[:3]
    assert sample(model, VOCABULARY, samples=20, seed=6) != many
    short = sample(model, VOCABULARY, samples=20, seed=5, max_chars=4)
    assert short == [sentence[:4] for sentence in many]


def test_global_generators_modes_and_gradients_are_left_alone():
    model = Scripted(torch.zeros(10, 5)).train()
    model.dropout.eval()
    torch.manual_seed(0)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = sample(model, VOCABULARY, samples=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == numpy_before).all()
    assert model.training
    assert not model.dropout.training
    assert model.logits.grad is None
    torch.manual_seed(1)
    assert sample(model.train(), VOCABULARY, samples=3) == first  # in eval mode whatever the mode was before
    assert model.dropout.training


def test_the_mode_is_restored_after_an_error():
    model = Scripted([[math.nan] * 5] * 4).train()
    with pytest.raises(UsageError):
        sample(model, VOCABULARY, samples=1)
    assert model.training


@pytest.mark.parametrize(("longest_input", "expected"), [(6, 5), (None, 7)])
def test_the_longest_sentence_is_what_the_model_reads(longest_input, expected):
    never_ends = torch.zeros(8, 5)
    never_ends[:, END] = -1e4
    model = Scripted(never_ends, longest_input)
    (sentence,) = sample(model, VOCABULARY, samples=1)
    assert len(sentence) == expected
    assert model.calls[-1].shape[1] == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompt": "abx"}, ["prompt='abx'", "character 3", "'x'", "U+0078", "'abcd'"]),
        ({"prompt": "a\n"}, ["character 2", "U+000A"]),
        ({"prompt": "abcdab"}, ["prompt", "6 characters", "5"]),
        ({"max_chars": 6}, ["max_chars=6", "at most 6 tokens", "max_chars=5"]),
        ({"prompt": "abc", "max_chars": 2}, ["prompt", "3 characters", "2"]),
    ],
)
def test_errors_are_one_clear_line(options, words):
    with pytest.raises(UsageError) as error:
        sample(Scripted(torch.zeros(8, 5), longest_input=6), VOCABULARY, samples=1, **options)
    message = str(error.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_a_prompt_of_full_length_is_returned_as_it_is():
    assert sample(Scripted(torch.zeros(8, 5), longest_input=6), VOCABULARY, samples=1, prompt="abcda") == ["abcda"]


@settings(max_examples=20)
@given(st.text("abcd", max_size=5), st.integers(0, 2**32 - 1))
def test_sentences_begin_with_the_prompt(prompt, seed):
    for sentence in sample(Scripted(torch.zeros(8, 5), 6), VOCABULARY, samples=3, prompt=prompt, seed=seed):
        assert sentence.startswith(prompt)
        assert len(sentence) <= 5
