"""The shares that processes take of a batch make the step of one process that has it all; here without processes."""

import copy
import functools
import math
from types import SimpleNamespace

import pytest
import torch

from lipformer.data.collate import Share, collate
from lipformer.errors import DivergedError
from lipformer.models.transformer import CharTransformer
from lipformer.modules.attention import DotProductAttention
from lipformer.modules.embedding import TokenEmbedding
from lipformer.modules.feedforward import FeedForward
from lipformer.modules.linear import dense
from lipformer.modules.normalisations import LayerNorm
from lipformer.modules.position import LearnedPosition
from lipformer.modules.residual import PreNorm
from lipformer.training.language import LanguageModule
from lipformer.training.regularizers import jasmin, no_regularizer

SYMBOLS = 7
SENTENCES = [torch.arange(length) * 5 % SYMBOLS for length in (2, 3, 3, 6)]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    parts = {
        "norm": LayerNorm,
        "residual": PreNorm,
        "feedforward": functools.partial(FeedForward, activation="gelu", expansion=2),
        "position": LearnedPosition,
        "embedding": TokenEmbedding,
        "linear": dense,
    }
    options = {"width": 8, "heads": 2, "depth": 2, "context": 8, "attention": DotProductAttention}
    return CharTransformer(SYMBOLS + 1, **options, **parts).double()


class Paused(Exception):
    """A rank has told its sums, and waits for those of the others."""


def step(model, ranks, regularizer, spoil=()):
    """One training step of each rank, which exchange nothing but the sums that they reduce.

    Args:
        spoil: ranks whose batch is to be read as nan.
    """
    told = []

    def reduce(sums, reduce_op):
        assert reduce_op == "sum"
        if len(told) < ranks:
            told.append(sums)
            raise Paused
        return torch.stack(told).sum(0)

    modules = []
    for rank in [*range(ranks), *range(ranks)]:  # each tells its sums first, and then knows those of all
        options = {"optimizer": None, "schedule": None, "checkpoint_extras": {}, "seed": 0, "log_every_steps": 1}
        module = LanguageModule(copy.deepcopy(model), regularizer=regularizer, **options)
        optimizer = SimpleNamespace(param_groups=[{"lr": 0.5}])
        strategy = SimpleNamespace(reduce=reduce)
        module._trainer = SimpleNamespace(world_size=ranks, strategy=strategy, global_step=3, optimizers=[optimizer])
        if rank in spoil:
            torch.nn.init.constant_(module.model.unembedding.bias, math.nan)
        try:
            module.training_step(collate(SENTENCES, SYMBOLS, Share(rank, ranks)), 0).backward()
        except Paused:
            continue
        modules.append(module)
    return modules


PENALTIES = {"none": no_regularizer, "jasmin": functools.partial(jasmin, weight=0.7, k=0)}


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("ranks", [2, 3, 6])  # six processes have four sentences
def test_the_mean_of_the_gradients_is_that_of_the_whole_batch(penalty, ranks, model):
    (alone,) = step(model, 1, PENALTIES[penalty])
    together = step(model, ranks, PENALTIES[penalty])
    for name, parameter in alone.model.named_parameters():
        mean = sum(dict(module.model.named_parameters())[name].grad for module in together) / ranks
        torch.testing.assert_close(mean, parameter.grad, rtol=0, atol=1e-14)  # gradients of order 1, sums of 20 terms
    for module in together:
        assert module.batch_score == pytest.approx(alone.batch_score, rel=1e-14)
        assert module.tokens_seen == alone.tokens_seen == sum(len(ids) + 1 for ids in SENTENCES)
        assert module.train_average.compute() == pytest.approx(alone.train_average.compute().item(), rel=1e-14)
    if penalty != "none":
        logged = [module._penalty.item() for module in together[: len(SENTENCES)]]
        assert logged == pytest.approx([alone._penalty.item()] * len(logged), rel=1e-14)


def bad_penalty(model, batch):
    return model(batch.inputs), torch.tensor(math.nan if 6 in (batch.lengths - 1) else 0.5)


@pytest.mark.parametrize(("regularizer", "spoil"), [(no_regularizer, {1}), (bad_penalty, ())])
def test_what_diverges_on_one_rank_ends_all(regularizer, spoil, model):
    """Each of the two processes must raise: one that went on would wait for the other for ever."""
    raised = []
    original = LanguageModule.training_step

    def training_step(self, *arguments):
        try:
            return original(self, *arguments)
        except DivergedError as error:
            raised.append(str(error))
            raise Paused from error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LanguageModule, "training_step", training_step)
        assert step(model, 2, regularizer, spoil) == []
    assert len(raised) == 2
    assert all("became nan at step 3: lower lr=0.5" in reason for reason in raised)
