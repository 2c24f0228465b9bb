"""What a sweep varied: keys as typed, settings over the seeds, and the axes of its map."""

import pytest

from lipformer.runs.outcome import Outcome
from lipformer.runs.sweep import SweepJob
from lipformer.runs.swept import (
    MOST_PLACES,
    Axes,
    Key,
    SweptJob,
    cells_of,
    choose_axes,
    colour_ends,
    mapped_keys,
    settings_of,
    swept_keys,
)


def job(number, overrides, status="finished", best=None, reason=""):
    return SweptJob(SweepJob(number, f"sweep/{number}", overrides.split(), Outcome(status, None, reason, best)))


def keys_of(*overrides):
    return swept_keys([job(number, text).job for number, text in enumerate(overrides)])


def test_keys_are_those_in_which_jobs_differ_as_typed():
    found = keys_of("lr=1e-3 +x=1 depth=2", "lr=1e-4 +x=1 depth=12", "", "lr=3e-4 depth=2 +x=1")
    assert [(key.name, key.values) for key in found] == [("lr", ["1e-4", "3e-4", "1e-3"]), ("depth", ["2", "12"])]


def test_a_key_that_a_job_lacks_is_swept():
    (key,) = keys_of("lr=1 width=8", "lr=1")
    assert (key.name, key.values, key.numeric, key.place_names) == ("width", ["8", ""], False, ["8", "–"])


def test_texts_keep_the_order_of_the_jobs_and_one_job_has_all_its_keys():
    found = keys_of("attention=tied_l2 offsets=null", "attention=l2 offsets=2")
    assert [key.values for key in found] == [["tied_l2", "l2"], ["null", "2"]]
    assert [key.numeric for key in found] == [False, False]
    assert [key.name for key in keys_of("lr=1 depth=2")] == ["lr", "depth"]
    assert keys_of("", "") == []
    assert mapped_keys(keys_of("lr=1")) == []


def test_a_key_of_many_numbers_has_ranges():
    key = Key("lr", [str(number) for number in range(100)])
    assert len(key.place_names) == MOST_PLACES == len(set(key.places))
    assert key.place_names[0] == "0 … 8"
    assert key.places == sorted(key.places)
    assert Key("attention", [f"a{number}" for number in range(100)]).places == list(range(100))


def test_the_seed_is_no_axis_unless_it_is_alone():
    assert [key.name for key in mapped_keys(keys_of("lr=1 seed=0", "lr=2 seed=1"))] == ["lr"]
    assert [key.name for key in mapped_keys(keys_of("seed=0", "seed=1"))] == ["seed"]


def axes_of(**values):
    keys = [Key(name, found) for name, found in values.items()]
    chosen = choose_axes(keys)
    return tuple(None if place is None else keys[place].name for place in (chosen.x, chosen.y, chosen.panel))


@pytest.mark.parametrize(
    ("keys", "axes"),
    [
        ({"depth": "24", "attention": "ab", "lr": "12"}, ("lr", "depth", "attention")),
        ({"width": "24", "norm": "ab", "dropout": "12"}, ("width", "dropout", "norm")),
        ({"norm": "ab", "attention": "cd", "lr": "12", "depth": "12"}, ("lr", "depth", "attention")),
        ({"lr": "12", "attention": "ab"}, ("lr", None, "attention")),
        ({"attention": "ab", "norm": "cd"}, ("attention", "norm", None)),
        ({"attention": "ab"}, ("attention", None, None)),
        ({"lr": "12", "depth": "12", "width": "34"}, ("lr", "depth", "width")),
        ({"lr": "12", "name": "abcdefghijklmnop"}, ("lr", None, None)),
        ({}, (None, None, None)),
    ],
)
def test_axes(keys, axes):
    assert axes_of(**{name: list(values) for name, values in keys.items()}) == axes


def seeded(*jobs):
    """Settings by their learning rates, of jobs given as (lr, status, best)."""
    swept = [job(n, f"lr={lr} seed={n}", status, best) for n, (lr, status, best) in enumerate(jobs)]
    keys = mapped_keys(swept_keys([one.job for one in swept]))
    return settings_of(swept, keys)


def test_a_mean_is_of_the_finished_jobs_and_says_so():
    one, two = seeded(
        ("1", "finished", 1.0),
        ("1", "finished", 2.0),
        ("1", "diverged", 0.5),
        ("2", "finished", 3.0),
        ("2", "waiting", None),
    )
    assert (one.mean, one.in_words(), two.mean, two.in_words()) == (
        (3.0, "mean of 1 of 2 seeds; 1 waiting", 1.5, "mean of 2 of 3 seeds; 1 diverged")
    )
    assert two.deviation == pytest.approx(0.5**0.5)
    assert one.deviation is None


def test_a_setting_with_a_diverged_seed_comes_after_every_sound_one():
    found = seeded(("1", "finished", 1.0), ("1", "diverged", 0.9), ("2", "finished", 5.0), ("3", "running", 0.1))
    assert [setting.value for setting in found] == [5.0, 1.0, 0.1]
    assert [setting.state for setting in found] == ["scored", "scored", "so_far"]


@pytest.mark.parametrize(
    ("statuses", "state", "words"),
    [
        (["diverged"], "diverged", ""),
        (["diverged", "failed"], "diverged", "2 seeds; 1 diverged; 1 failed"),
        (["failed", "waiting"], "failed", "2 seeds; 1 failed; 1 waiting"),
        (["waiting"], "waiting", ""),
        (["running", "waiting"], "running", "2 seeds; 1 running; 1 waiting"),
        (["interrupted"], "interrupted", ""),
        (["finished"], "finished", ""),
    ],
)
def test_a_setting_without_a_score_says_why(statuses, state, words):
    setting = next(one for one in seeded(*(("1", s, None) for s in statuses), ("2", "waiting", None)) if one.at == (0,))
    assert (setting.value, setting.state, setting.in_words()) == (None, state, words)


def test_a_score_that_is_not_finite_is_none():
    (setting,) = settings_of([job(0, "lr=1", "finished", float("inf"))], [])
    assert setting.value is None


def test_cells_have_the_best_setting_first():
    told = enumerate([(1, 0, 3.0), (1, 1, 2.0), (2, 0, 1.0)])
    jobs = [job(n, f"lr={lr} dropout={dropout}", "finished", best) for n, (lr, dropout, best) in told]
    keys = swept_keys([one.job for one in jobs])
    cells = cells_of(settings_of(jobs, keys), keys, Axes(0, None, None))
    assert [[setting.value for setting in cells[x, 0, 0]] for x in (0, 1)] == [[2.0, 3.0], [1.0]]


def test_a_few_large_scores_do_not_take_the_colours_of_the_others():
    sound = [(str(n), "finished", 1.0 + 0.01 * n) for n in range(20)]
    assert colour_ends(seeded(*sound)) == (1.0, pytest.approx(1.19), False)
    low, high, above = colour_ends(seeded(*sound, ("99", "finished", 400.0)))
    assert (low, above) == (1.0, True)
    assert high == pytest.approx(1.1 + 4 * 0.1)
    assert colour_ends(seeded(("1", "finished", 2.0))) == (1.5, 2.5, False)
    assert colour_ends([]) == (0.0, 1.0, False)
