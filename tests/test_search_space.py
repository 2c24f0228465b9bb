"""Hydra's grammar as the distributions of a search."""

import pytest

pytest.importorskip("optuna")
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from lipformer.errors import UsageError
from lipformer.program.search_space import grid_of, read_space


@pytest.mark.parametrize(
    ("typed", "distribution"),
    [
        ("lr=tag(log, interval(1e-5,1e-2))", FloatDistribution(1e-5, 1e-2, log=True)),
        ("dropout=interval(0,0.5)", FloatDistribution(0.0, 0.5)),
        ("depth=int(interval(2,12))", IntDistribution(2, 12)),
        ("width=tag(log, int(interval(16,256)))", IntDistribution(16, 256, log=True)),
        ("depth=range(2,9,2)", IntDistribution(2, 8, step=2)),
        ("depth=range(8,1,-2)", IntDistribution(2, 8, step=2)),
        ("depth=tag(log, range(1,9))", IntDistribution(1, 8, log=True)),
        ("dropout=range(0,1,0.25)", FloatDistribution(0.0, 0.75, step=0.25)),
        ("attention=dot_product,tied_l2", CategoricalDistribution(["dot_product", "tied_l2"])),
        ("depth=choice(2,4)", CategoricalDistribution(["2", "4"])),
        ("seed=1,1.0,true,1", CategoricalDistribution(["1", "1.0", "True"])),
        ("allow_targets=[a],[b,c]", CategoricalDistribution(["[a]", "[b,c]"])),
        ("name='a b','c,d'", CategoricalDistribution(["'a b'", "'c,d'"])),
    ],
)
def test_values_are_a_distribution(typed, distribution):
    space = read_space({}, [typed])
    assert list(space.distributions.values()) == [distribution]
    assert space.typed == dict([typed.split("=", 1)])


def test_a_job_has_the_fixed_overrides_and_its_values_in_the_order_typed():
    space = read_space({}, ["+note=x", "lr=interval(0,1)", "~callbacks.samples", "attention=a,b", "name='x y'"])
    assert space.job({"lr": 0.125, "attention": "b"}) == [
        "+note=x",
        "lr=0.125",
        "~callbacks.samples",
        "attention=b",
        "name='x y'",
    ]


def test_the_command_line_overrides_the_parameters_of_a_file():
    params = {"lr": "interval(0,1)", "depth": "2,4", "width": 32}
    space = read_space(params, ["lr=0.5", "depth=range(1,3)"])
    assert space.distributions == {"depth": IntDistribution(1, 2)}
    assert space.job({"depth": 2}) == ["lr=0.5", "depth=2", "width=32"]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("lr=1", "nothing to search"),
        ("lr=tag(log, interval(0,1))", r"lr=tag\(log, interval\(0,1\)\): the ends must be above 0, in ascending order"),
        ("lr=interval(2,1)", "the ends must be in ascending order"),
        ("lr=tag(uniform, interval(1,2))", r"tag\(uniform, ...\) means nothing to a search"),
        ("lr=tag(log, choice(1,2))", "choices have no order"),
        ("depth=tag(log, range(1,9,2))", "a range of whole numbers in steps of 1"),
        ("lr=tag(log, range(1.0,9.0))", "a range of whole numbers in steps of 1"),
        ("depth=range(3,3)", "the range is empty"),
    ],
)
def test_what_cannot_be_searched_is_said_in_one_line(typed, said):
    with pytest.raises(UsageError, match=said) as error:
        read_space({}, [typed])
    assert "\n" not in str(error.value)


def test_samples_have_every_choice_and_both_ends():
    space = read_space({}, ["lr=interval(0,1)", "attention=a,b,c", "depth=range(2,9,2)", "width=64"])
    jobs = space.samples()
    assert {text for job in jobs for text in job} == {
        *("lr=0.0", "lr=1.0", "attention=a", "attention=b", "attention=c", "depth=2", "depth=8", "width=64")
    }
    assert all(len(job) == 4 for job in jobs)


def test_the_size_of_a_grid():
    assert read_space({}, ["a=1,2,3", "b=range(2,9,2)", "c=range(0,1,0.25)"]).size == 3 * 4 * 4
    assert read_space({}, ["a=1,2,3", "b=interval(2,9)"]).size is None
    assert grid_of(FloatDistribution(0.0, 0.75, step=0.25)) == [0.0, 0.25, 0.5, 0.75]
