import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipformer.data import TokenBudgetBatchSampler
from lipformer.errors import DataError

lengths = st.lists(st.integers(1, 60), min_size=1, max_size=120)


@given(lengths, st.integers(60, 400), st.integers(0, 3), st.booleans())
def test_every_sentence_once_within_the_budget_by_length(all_lengths, budget, epoch, shuffle):
    sampler = TokenBudgetBatchSampler(all_lengths, budget, seed=3, shuffle=shuffle)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    assert sorted(itertools.chain(*batches)) == list(range(len(all_lengths)))
    assert all(max(all_lengths[i] for i in batch) * len(batch) <= budget for batch in batches)
    assert all(all_lengths[a] <= all_lengths[b] for batch in batches for a, b in itertools.pairwise(batch))
    padded = sum(max(all_lengths[i] for i in batch) * len(batch) for batch in batches)
    assert sampler.padding_fraction == pytest.approx(1 - sum(all_lengths) / padded)


@given(lengths, st.integers(60, 400), st.integers(0, 5))
def test_the_order_depends_on_seed_and_epoch_alone(all_lengths, budget, epoch):
    first = TokenBudgetBatchSampler(all_lengths, budget, seed=3)
    list(first)
    first.set_epoch(epoch)
    torch.rand(1), np.random.rand()
    second = TokenBudgetBatchSampler(np.array(all_lengths), budget, seed=3)
    second.set_epoch(epoch)
    assert list(first) == list(second) == list(second)


def test_epochs_and_seeds_differ_but_have_the_same_lengths_of_batches():
    all_lengths = [1 + i % 17 for i in range(300)]
    sampler = TokenBudgetBatchSampler(all_lengths, 64, seed=3)
    orders, shapes = [], []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
        shapes.append(sorted(sorted(all_lengths[i] for i in batch) for batch in orders[-1]))
    assert orders[0] != orders[1] != orders[2]
    assert shapes[0] == shapes[1] == shapes[2]
    assert list(TokenBudgetBatchSampler(all_lengths, 64, seed=4)) != orders[0]
    # Equal lengths are mixed anew: the batches are not the same sets in another order.
    assert {frozenset(batch) for batch in orders[0]} != {frozenset(batch) for batch in orders[1]}
    # Batches are shuffled: lengths neither rise nor fall through the epoch.
    heads = [all_lengths[batch[0]] for batch in orders[0]]
    assert heads not in (sorted(heads), sorted(heads, reverse=True))


def test_the_global_generators_are_not_touched():
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    list(TokenBudgetBatchSampler([3, 4, 5] * 9, 20, seed=1))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()


def test_without_shuffling_by_length_in_the_given_order():
    sampler = TokenBudgetBatchSampler([5, 2, 5, 2, 1], 10, seed=0, shuffle=False)
    batches = list(sampler)
    assert list(itertools.chain(*batches)) == [4, 1, 3, 0, 2]
    sampler.set_epoch(1)
    assert list(sampler) == batches


def test_skip_holds_for_its_epoch_alone():
    sampler = TokenBudgetBatchSampler([2] * 30, 6, seed=0)
    sampler.set_epoch(4)
    whole = list(sampler)
    sampler.skip(3)
    assert list(sampler) == list(sampler) == whole[3:]
    assert len(sampler) == len(whole)
    sampler.set_epoch(4)
    assert list(sampler) == whole[3:]
    sampler.set_epoch(5)
    assert len(list(sampler)) == len(whole)
    sampler.set_epoch(4)
    assert list(sampler) == whole
    sampler.skip(len(whole))
    assert list(sampler) == []
    for wrong in (-1, len(whole) + 1):
        with pytest.raises(ValueError, match=f"cannot skip {wrong} of an epoch of {len(whole)} batches"):
            sampler.skip(wrong)


def test_an_iterator_keeps_the_epoch_it_was_made_in():
    sampler = TokenBudgetBatchSampler([2] * 30, 6, seed=0)
    whole = list(sampler)
    iterator = iter(sampler)
    sampler.set_epoch(1)
    assert list(iterator) == whole


def test_lightning_finds_set_epoch():
    from lightning_fabric.utilities.data import _set_sampler_epoch
    from torch.utils.data import DataLoader

    sampler = TokenBudgetBatchSampler([1, 2, 3], 6, seed=0)
    _set_sampler_epoch(DataLoader([1, 2, 3], batch_sampler=sampler), 5)
    assert sampler.epoch == 5


def test_a_sentence_beyond_the_budget():
    with pytest.raises(DataError, match=r"data.batch_tokens=10 is less than the longest sentence's 11: raise it"):
        TokenBudgetBatchSampler([3, 11], 10, seed=0)


def test_no_sentence():
    with pytest.raises(DataError, match="no sentence"):
        TokenBudgetBatchSampler([], 10, seed=0)


def test_little_padding_in_a_corpus_of_the_usual_size():
    all_lengths = np.random.default_rng(0).integers(10, 288, 42_000)
    assert TokenBudgetBatchSampler(all_lengths, 4096, seed=0).padding_fraction < 0.03
