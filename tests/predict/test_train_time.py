"""Epochs, evaluations and the clocks of a run."""

from functools import partial
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rn50.config.load import load_system
from rn50.predict.epochs import epochs_to_target, evaluations, read_table, stop_epoch
from rn50.predict.fit import build
from rn50.predict.train_time import Phase, steps_per_epoch, train_time

FUZZ = settings(max_examples=50)


@FUZZ
@given(expected=st.floats(1, 200), offset=st.integers(0, 3))
def test_a_run_stops_at_an_evaluation(expected: float, offset: int) -> None:
    epoch = stop_epoch(expected, 4, offset)
    assert (epoch - 1) % 4 == offset
    assert -0.5 <= epoch - expected < 4.5
    assert stop_epoch(37.5, 4, None) == 37
    evaluated = range(offset + 1, epoch + 1, 4)
    assert evaluations(epoch, 4, offset) == len(evaluated)


@FUZZ
@given(
    batch=st.integers(32, 200_000),
    more=st.integers(0, 50_000),
    era=st.sampled_from(["0.6.0", "4.0.0"]),
)
def test_larger_batches_never_need_fewer_epochs(
    batch: int, more: int, era: str
) -> None:
    small = epochs_to_target(batch, era)
    assert epochs_to_target(batch + more, era).expected >= small.expected
    assert 1 <= small.low <= small.expected <= small.high


def test_epochs_of_closed_runs_are_within_their_interval() -> None:
    """Nine of ten runs since v0.7 lie in the interval that is called 90 %."""
    inside = []
    for row in read_table("epochs.csv"):
        if row["version"] >= "0.7" and row["optimizer"] == "lars":
            prediction = epochs_to_target(int(row["global_batch_size"]))
            epochs = float(row["epochs_mean"])
            inside.append(prediction.low <= epochs <= prediction.high)
    assert mean(inside) >= 0.85
    for batch, epochs in ((3264, 35.15), (32768, 58), (86016, 90)):
        expected = epochs_to_target(batch).expected
        assert expected == pytest.approx(epochs, rel=0.03)


def test_beyond_the_data_the_interval_widens_by_half_of_the_change() -> None:
    """86,016 images are the largest published batch; the last slope is that of all batches."""
    largest = epochs_to_target(86_016)
    beyond = epochs_to_target(172_032)
    change = beyond.expected - largest.expected
    assert change > 20
    half = largest.high - largest.expected + change / 2
    assert beyond.high - beyond.expected == pytest.approx(half)
    assert beyond.expected - beyond.low == pytest.approx(half)


def test_reading_counts_once() -> None:
    machine = build("dgx1", load_system("dgx1"))
    phase = Phase(60, 208, steps_per_epoch(8, 208), step_s=0.14)
    clocks = partial(train_time, machine, [phase], 15, 8, algorithms=("ring",))
    run = clocks(bn_average=True)
    # One node reads 140 GB at 0.55 GB/s: longer than an epoch (published: 134 s more).
    assert run.first_epoch_excess_s == pytest.approx(140, abs=15)
    local = clocks(bn_average=False)
    assert run.total_s > local.total_s
