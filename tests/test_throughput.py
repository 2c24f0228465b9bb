"""The speed of a training, and the time that is left of it."""

import math
from types import SimpleNamespace

from trainers import clock_by_hand, trainer  # noqa: F401

from lipformer.training.callbacks.throughput import Throughput, clock


def test_time_left_counts_the_validations_to_come(now):
    throughput, module, state = Throughput(), SimpleNamespace(tokens_seen=0), trainer()
    throughput.on_train_start(state, module)
    assert math.isnan(throughput.seconds_left(state))
    state.global_step, now.seconds = 5, 110  # 2 s a step
    assert throughput.seconds_left(state) == 15 * 2, "no validation was seen yet"
    throughput.on_validation_start(state, module)
    now.seconds = 113  # and 3 s a validation
    throughput.on_validation_end(state, module)
    assert throughput.seconds_left(state) == 15 * 2 + 3 * 3, "those at 10, 15 and 20"
    state.max_steps = 18
    assert throughput.seconds_left(state) == 13 * 2 + 3 * 3, "the one at the end counts where it is no fifth step"
    state.global_step, now.seconds = 17, 137
    assert throughput.seconds_left(state) == 1 * 2 + 1 * 3
    state.global_step = 18
    assert throughput.seconds_left(state) == 0


def test_a_resumed_run_has_the_speed_of_its_own_steps(now):
    throughput, module, state = Throughput(), SimpleNamespace(tokens_seen=1000), trainer(step=10)
    throughput.on_train_start(state, module)
    assert math.isnan(throughput.seconds_left(state))
    state.global_step, module.tokens_seen, now.seconds = 12, 1600, 106
    assert throughput.seconds_left(state) == 8 * 3
    assert throughput.tokens_per_second(module.tokens_seen) == 100


def test_durations_are_spelled_as_a_clock_does():
    assert clock(3725.4) == "1:02:05"
    assert clock(59.6) == "0:01:00"
