"""What CharDataModule reads, drops, replaces, refuses and reports. Resuming is in test_data_resume.py."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipformer.data import Vocabulary
from lipformer.data.datamodule import CharDataModule
from lipformer.errors import DataError


class Told:
    """A corpus of the lines it is given, which notes what is read."""

    name = "told"

    def __init__(self, train=("ab", "abc a", "b"), valid=("a",), test=("b", "c c")):
        self.splits = {"train": list(train), "valid": list(valid), "test": list(test)}
        self.read = []

    def lines(self, split):
        self.read.append(split)
        return self.splits[split]

    def source(self, split, index=None):
        return f"{split}.txt" + ("" if index is None else f", line {index + 1}")


def datamodule(corpus=None, **changes):
    options = {
        "context": 16,
        "max_length": None,
        "unknown": "error",
        "batch_tokens": 32,
        "num_workers": 0,
        "seed": 0,
    }
    return CharDataModule(corpus or Told(), **(options | changes))


def error_of(call) -> str:
    with pytest.raises(DataError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("stage", "read"),
    [("fit", ["train", "valid"]), ("validate", ["valid", "train"]), ("test", ["test", "train"]), ("predict", [])],
)
def test_a_stage_reads_its_splits_and_train_for_the_vocabulary(stage, read):
    data = datamodule()
    data.setup(stage)
    data.setup(stage)  # Lightning calls it again
    assert data.corpus.read == read


def test_with_a_vocabulary_train_is_not_read():
    vocabulary = Vocabulary.from_lines(["abc "])
    data = datamodule(vocabulary=vocabulary)
    data.setup("test")
    batches = list(data.test_dataloader())
    assert data.corpus.read == ["test"]
    assert data.vocabulary is vocabulary
    rows = [row[:length] for batch in batches for row, length in zip(batch.inputs, batch.lengths, strict=True)]
    assert sorted(map(vocabulary.decode, rows)) == ["b", "c c"]


def test_the_vocabulary_is_that_of_all_training_lines():
    data = datamodule(Told(train=["ab", "a long line with z"], test=["b"]), max_length=8)
    data.setup("fit")
    assert data.vocabulary == Vocabulary.from_lines(["ab", "a long line with z"])


def test_max_length_counts_the_end_symbol_and_names_the_protocol():
    data = datamodule(Told(train=["a" * 7, "a" * 8, "b"]), max_length=8, context=8)
    data.setup("fit")
    assert data.protocol("train") == (
        "told train, lines of at most 8 characters, end symbol counted (2 of 3 lines, 10 tokens)"
    )
    assert "1 lines dropped" in data.report()[1]
    assert max(batch.inputs.shape[1] for batch in data.train_dataloader()) == 8


def test_all_lines():
    assert datamodule().protocol("test") == "told test, all lines (2 lines, 6 tokens)"


def test_a_line_as_long_as_the_context_fits_with_its_end_symbol_only_if_one_shorter():
    datamodule(Told(train=["a" * 15])).setup("fit")
    message = error_of(lambda: datamodule(Told(train=["a", "a" * 16, "a" * 20])).setup("fit"))
    assert message == (
        "train.txt, line 2: 17 tokens, end symbol counted, do not fit into context=16 (2 such lines in train); "
        "drop them by data.max_length=16, or train with context=21 or more"
    )


def test_a_max_length_above_the_context_does_not_hide_longer_lines():
    assert "do not fit into context=16" in error_of(
        lambda: datamodule(Told(train=["a" * 16, "a" * 40]), max_length=20).setup("fit")
    )


def test_nothing_left():
    message = error_of(lambda: datamodule(Told(valid=["aaaa"]), max_length=4).setup("validate"))
    assert message.startswith("valid.txt: none of the lines of valid has at most data.max_length=4 tokens")


def test_unknown_characters():
    corpus = Told(valid=["a", "b?a!"])
    message = error_of(lambda: datamodule(corpus).setup("fit"))
    assert message.startswith("valid.txt, line 2, column 2: character '?' (U+003F) does not occur in the training")
    data = datamodule(corpus, unknown="replace")
    data.setup("fit")
    assert data.protocol("valid").endswith("(2 lines, 7 tokens), 2 unknown characters replaced")
    assert len(data.vocabulary) == 5
    assert data.protocol("train") == "told train, all lines (3 lines, 11 tokens)"


def test_report():
    data = datamodule()
    assert data.report() == []
    data.setup("fit")
    assert data.report() == [
        "vocabulary: 4 characters and the end symbol, 5 outputs",
        "told train, all lines (3 lines, 11 tokens); 0 lines dropped; "
        "1 batches of at most 32 tokens, 38.89% padding; train.txt",
        "told valid, all lines (1 lines, 2 tokens); 0 lines dropped; "
        "1 batches of at most 32 tokens, 0.00% padding; valid.txt",
    ]


@given(st.lists(st.text("ab ", min_size=1, max_size=12), min_size=1, max_size=40), st.integers(13, 80))
def test_each_sentence_comes_once_whatever_the_budget(lines, budget):
    data = datamodule(Told(train=[*lines, "ab "]), batch_tokens=budget)
    sentences = []
    for batch in data.train_dataloader():
        assert batch.inputs.numel() <= budget
        for row, length in zip(batch.targets, batch.lengths, strict=True):
            sentences.append(data.vocabulary.decode(row[:length]))
    assert sorted(sentences) == sorted([*lines, "ab "])


def test_valid_and_test_keep_one_order():
    data = datamodule(Told(valid=[text * 2 for text in "abcabcab"]), batch_tokens=6)
    first, second = ([batch.inputs.tolist() for batch in data.val_dataloader()] for _ in range(2))
    assert first == second
    assert len(first) == 4


def test_workers_give_the_same_batches():
    corpus = Told(train=["".join(text) for text in itertools.product("abc", repeat=3)])
    batches = [
        [[tensor.tolist() for tensor in batch] for batch in datamodule(corpus, num_workers=workers).train_dataloader()]
        for workers in (0, 2)
    ]
    assert batches[0] == batches[1]


def trainer(rank, ranks):
    return SimpleNamespace(
        global_rank=rank,
        world_size=ranks,
        num_training_batches=float("inf"),
        strategy=SimpleNamespace(root_device=torch.device("cpu")),
        fit_loop=SimpleNamespace(
            epoch_loop=SimpleNamespace(batch_progress=SimpleNamespace(total=SimpleNamespace(processed=0)))
        ),
    )


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_the_batches_of_a_step_are_the_same_for_any_number_of_processes(split, ranks):
    """Also where a batch has fewer sentences than there are processes: the rest has empty ones."""
    lines = ["".join(text) for text in itertools.product("abc", repeat=3)]
    corpus = Told(train=lines, valid=lines)
    alone = [batch.inputs.tolist() for batch in getattr(datamodule(corpus), f"{split}_dataloader")()]
    shares = []
    for rank in range(ranks):
        data = datamodule(corpus)
        data.trainer = trainer(rank, ranks)
        shares.append(list(getattr(data, f"{split}_dataloader")()))
        assert len(shares[-1]) == data.batches_per_epoch == len(alone) == 4
    for step, rows in enumerate(alone):
        own = [share[step].inputs.tolist() for share in shares]
        assert sorted(row for share in own for row in share) == sorted(rows)
        assert [len(share) for share in own] == [len(rows[rank::ranks]) for rank in range(ranks)]
    assert any(len(share[-1].inputs) == 0 for share in shares) == (ranks == 5)


def test_state_without_a_trainer_is_the_place_it_was_given():
    data = datamodule(vocabulary=Vocabulary.from_lines(["abc "]))
    assert data.state_dict() == {"epoch": 0, "batches": 0, "batches_per_epoch": 0, "batches_total": 0}
    state = {"epoch": 2, "batches": 1, "batches_per_epoch": 5, "batches_total": 11}
    data.load_state_dict(state)
    assert data.state_dict() == state
    assert data.corpus.read == []  # a checkpoint is tested without its training text
