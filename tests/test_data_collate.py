import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from lipformer.data import IGNORE, Batch, Sentences
from lipformer.data.collate import Share, collate

END = 9
sentences = st.lists(st.lists(st.integers(0, END - 1), max_size=12), min_size=1, max_size=8)


def test_layout():
    batch = collate([torch.tensor([1, 2, 3]), torch.tensor([4]), torch.tensor([], dtype=torch.int64)], END)
    assert batch.inputs.tolist() == [[9, 1, 2, 3], [9, 4, 0, 0], [9, 0, 0, 0]]
    assert batch.targets.tolist() == [[1, 2, 3, 9], [4, 9, -100, -100], [9, -100, -100, -100]]
    assert batch.lengths.tolist() == [4, 2, 1]
    assert {tensor.dtype for tensor in batch} == {torch.int64}


@given(sentences)
def test_targets_are_the_inputs_one_step_ahead(rows):
    data = Sentences(rows)
    inputs, targets, lengths = collate([data[i] for i in range(len(data))], END)
    assert lengths.tolist() == data.lengths.tolist() == [len(row) + 1 for row in rows]
    assert inputs.shape == targets.shape == (len(rows), max(data.lengths))
    for row, length in enumerate(lengths):
        assert inputs[row, 1:length].tolist() == targets[row, : length - 1].tolist() == rows[row]
        assert inputs[row, 0] == targets[row, length - 1] == END
        assert (inputs[row, length:] == 0).all()
        assert (targets[row, length:] == IGNORE).all()
    assert (targets != IGNORE).sum() == data.tokens


@given(sentences, st.integers(1, 5))
def test_shares_are_the_rows_of_the_whole_batch(rows, ranks):
    data = Sentences(sorted(rows, key=len))
    everything = [data[i] for i in range(len(data))]
    whole = collate(everything, END)
    shares = [collate(everything, END, Share(rank, ranks)) for rank in range(ranks)]
    for rank, share in enumerate(shares):
        assert {tensor.dtype for tensor in share} == {torch.int64}
        for tensor, all_rows in zip(share, whole, strict=True):
            assert torch.equal(tensor, all_rows[rank::ranks])  # as wide as the whole batch, also without a row
    tokens = [int(share.lengths.sum()) for share in shares]
    assert sum(tokens) == data.tokens
    assert max(tokens) - min(tokens) <= max(data.lengths)
    assert max(map(len, (share.lengths for share in shares))) - min(len(share.lengths) for share in shares) <= 1


def test_cross_entropy_ignores_padding():
    batch = collate([torch.tensor([1, 2, 3]), torch.tensor([4])], END)
    logits = torch.zeros(2, 4, END + 1)
    logits[1, 2:] = torch.randn(2, END + 1)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="sum")
    assert loss.item() == pytest.approx(6 * torch.log(torch.tensor(10.0)).item())


def test_a_batch_keeps_its_type_on_its_way_to_a_device():
    from lightning_fabric.utilities.apply_func import move_data_to_device

    batch = collate([torch.tensor([1])], END)
    moved = move_data_to_device(batch, torch.device("meta"))
    assert isinstance(moved, Batch)
    assert moved.inputs.device.type == moved.lengths.device.type == "meta"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinning needs CUDA")
def test_a_batch_can_be_pinned():
    loader = DataLoader(Sentences([[1, 2]]), collate_fn=lambda rows: collate(rows, END), pin_memory=True)
    batch = next(iter(loader))
    assert isinstance(batch, Batch)
    assert batch.inputs.is_pinned()


def test_no_sentences():
    assert len(Sentences([])) == Sentences([]).tokens == 0
