"""Nats per character are a property of the split, not of its batches."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from lipformer.data.collate import IGNORE
from lipformer.tasks import LANGUAGE
from lipformer.telemetry.objective import Average, sum_nats

V = 7


def corpus(lengths):
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(n, V, dtype=torch.float64, generator=generator), torch.randint(V, (n,), generator=generator))
        for n in lengths
    ]


def pad(sentences):
    longest = max(len(targets) for _, targets in sentences)
    logits = torch.full((len(sentences), longest, V), 50.0, dtype=torch.float64)
    targets = torch.full((len(sentences), longest), IGNORE)
    for row, (sentence_logits, sentence_targets) in enumerate(sentences):
        logits[row, : len(sentence_targets)], targets[row, : len(sentence_targets)] = sentence_logits, sentence_targets
    return logits, targets


@given(st.lists(st.integers(1, 12), min_size=1, max_size=9), st.integers(1, 9))
def test_any_batching_gives_what_single_sentences_give(lengths, batch_size):
    sentences = corpus(lengths)
    metric = Average()
    for start in range(0, len(sentences), batch_size):
        metric.update(*sum_nats(*pad(sentences[start : start + batch_size])))
    direct = sum(-F.log_softmax(logits, -1)[range(len(t)), t].sum() for logits, t in sentences) / sum(lengths)
    assert float(metric.compute()) == pytest.approx(float(direct), rel=1e-12)


def test_sums_are_float64_whatever_the_precision():
    metric = torch.nn.ModuleList([Average()]).to(torch.bfloat16)[0]
    for _ in range(3):
        metric.update(torch.tensor(2.0**24, dtype=torch.float32), torch.tensor(1))
    metric.update(torch.tensor(1.0), torch.tensor(1))
    assert float(metric.total) == 3 * 2**24 + 1
    assert float(metric.compute()) == (3 * 2**24 + 1) / 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_tokens_are_computed_in_float32_at_least_and_summed_in_float64(dtype):
    logits = torch.zeros(1, 50_001, V, dtype=dtype)
    nats, tokens = sum_nats(logits, torch.zeros(1, 50_001, dtype=torch.long))
    assert nats.dtype == torch.float64
    assert int(tokens) == 50_001
    one, _ = sum_nats(logits[:, :1], torch.zeros(1, 1, dtype=torch.long))
    assert float(one) == pytest.approx(math.log(V), rel=1e-6)
    assert float(nats) == pytest.approx(50_001 * float(one), rel=1e-12)


def test_one_nat_is_1_442695_bits():
    (bits,) = LANGUAGE.derived
    assert bits.of(1.0) == pytest.approx(1.442695, abs=5e-7)
