"""Epochs, evaluations and the clocks of a run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rn50.config.load import load_system
from rn50.scaling.epochs import (
    epochs_to_target,
    evaluations,
    read_table,
    stop_epoch,
)
from rn50.scaling.fit import build
from rn50.scaling.step import step_time
from rn50.scaling.train_time import Phase, evaluation_s, steps_per_epoch, train_time

FUZZ = settings(max_examples=50)


@FUZZ
@given(expected=st.floats(1, 200), offset=st.integers(0, 3))
def test_a_run_stops_at_an_evaluation(expected: float, offset: int) -> None:
    epoch = stop_epoch(expected, 4, offset)
    assert (epoch - 1) % 4 == offset
    assert -0.5 <= epoch - expected < 4.5
    assert evaluations(epoch, 4, offset) == len(
        [e for e in range(1, epoch + 1) if (e - 1) % 4 == offset]
    )


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
    large = epochs_to_target(batch + more, era)
    assert large.expected >= small.expected
    assert small.low <= small.expected <= small.high


def test_epochs_of_closed_runs_are_within_their_interval() -> None:
    """Of the runs since v0.7 nine of ten lie in the interval that is called 90 %."""
    rows = [
        row
        for row in read_table("epochs.csv")
        if row["version"] >= "0.7"
        and row["optimizer"] == "lars"
        and "open" not in row["system"]
        and "mindspore" not in row["system"]
    ]
    inside = 0
    for row in rows:
        known = epochs_to_target(int(row["global_batch_size"]))
        inside += known.low <= float(row["epochs_mean"]) <= known.high
    assert inside / len(rows) >= 0.85
    assert epochs_to_target(3264).expected == pytest.approx(35.15, abs=0.5)
    assert epochs_to_target(32768).expected == pytest.approx(56, abs=2)
    assert epochs_to_target(86016).expected == pytest.approx(90, abs=1)


def test_older_recipes_needed_more_epochs() -> None:
    """The same 33,280 images: 72 epochs in v0.6, 56 in v0.7."""
    assert (
        epochs_to_target(33280, "0.6.0").expected - epochs_to_target(33280).expected
        > 12
    )


def test_beyond_the_data_the_interval_widens_by_half_of_the_change() -> None:
    """86,016 images are the largest published batch; the last slope is that of all batches."""
    largest = epochs_to_target(86_016)
    beyond = epochs_to_target(172_032)
    change = beyond.expected - largest.expected
    assert change > 20
    for low_or_high in (beyond.high - beyond.expected, beyond.expected - beyond.low):
        scatter = largest.high - largest.expected
        assert low_or_high == pytest.approx(scatter + change / 2)


def test_clocks_add_up_and_reading_counts_once() -> None:
    machine = build("dgx1", load_system("dgx1"))
    step_s = step_time(machine, 8, 208).total_s
    phase = Phase(60, 208, steps_per_epoch(8, 208), step_s)
    run = train_time(machine, [phase], 15, 8)
    assert sum(run.parts.values()) == pytest.approx(run.total_s)
    assert run.training_s == pytest.approx(60 * 770 * phase.step_s)
    # One node reads 140 GB at 0.55 GB/s: longer than an epoch (published: 134 s more).
    assert run.first_epoch_s == pytest.approx(140, abs=15)
    local = train_time(machine, [phase], 15, 8, bn_average=False)
    assert run.total_s > local.total_s


def test_evaluation_times_of_published_runs() -> None:
    for name, gpus, published_s in (
        ("dgx1", 8, 4.209), ("dgx1", 1040, 0.049), ("dgx2h", 512, 0.085), ("abci", 2048, 0.059),
        ("dgxa100", 1024, 0.015), ("dgxh100", 512, 0.013), ("dgxh100", 8, 0.398),
    ):  # fmt: skip
        assert evaluation_s(build(name, load_system(name)), gpus) == pytest.approx(
            published_s, rel=0.35
        )
