"""Failures: the closed form against a simulation, the best interval, published rates."""

from __future__ import annotations

import math
from bisect import bisect_right

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rn50.config.load import load
from rn50.scaling.failures import (
    PUBLISHED,
    best_count,
    checkpoint_times_s,
    expected_s,
    outlook,
    stretches,
)
from rn50.scaling.predict import Prediction, job_of_config, predict

STUDIES = {study.name: study.gpu_hours for study in PUBLISHED}


def simulated_s(
    rng: np.random.Generator,
    work_s: float,
    checkpoints_s: list[float],
    blocking_s: float,
    write_s: float,
    mtbf_s: float,
    restart_s: float,
) -> float:
    """One run on a clock: work, pauses for copies, a disk that is done later, failures."""
    now_s, done_s, on_disk_s, being_written = 0.0, 0.0, 0.0, None
    failure_s = rng.exponential(mtbf_s)
    while True:
        todo = bisect_right(checkpoints_s, done_s) < len(checkpoints_s)
        target_s = checkpoints_s[bisect_right(checkpoints_s, done_s)] if todo else work_s
        length_s = target_s - done_s + (blocking_s if todo else 0.0)
        end_s = now_s + length_s
        if being_written is not None and being_written[1] <= min(end_s, failure_s):
            on_disk_s, being_written = being_written[0], None
        if failure_s >= end_s:
            now_s, done_s = end_s, target_s
            if not todo:
                return now_s
            being_written = (target_s, now_s + write_s)
            continue
        now_s, done_s, being_written = failure_s, on_disk_s, None
        while (failure_s := now_s + rng.exponential(mtbf_s)) < now_s + restart_s:
            now_s = failure_s
        now_s += restart_s


@pytest.mark.parametrize(
    ("checkpoints_s", "blocking_s", "write_s", "mtbf_s", "restart_s"),
    [
        ([], 0.0, 0.0, 150.0, 20.0),
        ([25.0, 50.0, 75.0], 2.0, 0.0, 60.0, 10.0),
        ([25.0, 50.0, 75.0], 2.0, 15.0, 60.0, 10.0),
        ([10.0, 60.0, 95.0], 1.0, 12.0, 40.0, 30.0),
        ([n / 2 for n in range(1, 200)], 0.1, 0.3, 5.0, 3.0),
    ],
)
def test_the_closed_form_is_the_mean_of_simulated_runs(
    checkpoints_s: list[float], blocking_s: float, write_s: float, mtbf_s: float, restart_s: float
) -> None:
    rng = np.random.default_rng(1)
    costs = (100.0, checkpoints_s, blocking_s, write_s)
    runs = np.array([simulated_s(rng, *costs, mtbf_s, restart_s) for _ in range(3000)])
    error_s = runs.std(ddof=1) / math.sqrt(len(runs))
    assert expected_s(stretches(*costs), mtbf_s, restart_s) == pytest.approx(
        runs.mean(), abs=4 * error_s
    )
    assert error_s < 0.05 * runs.mean()


def test_without_failures_a_run_takes_its_work_and_its_checkpoints() -> None:
    run = stretches(100.0, [20.0, 40.0, 99.9], 0.5, 3.0)
    assert expected_s(run, 1e12, 60.0) == pytest.approx(101.5, rel=1e-6)
    assert expected_s(run, 1e-3, 60.0) == math.inf


@given(st.floats(10, 1e4), st.floats(0, 5), st.floats(0, 20), st.floats(20, 1e5), st.floats(0, 100))
def test_no_other_count_of_checkpoints_is_better(
    work_s: float, blocking_s: float, write_s: float, mtbf_s: float, restart_s: float
) -> None:
    def time_s(count: int) -> float:
        even = [work_s * n / (count + 1) for n in range(1, count + 1)]
        return expected_s(stretches(work_s, even, blocking_s, write_s), mtbf_s, restart_s)

    write_s = max(write_s, work_s / 100)  # at most a hundred
    best = best_count(work_s, blocking_s, write_s, mtbf_s, restart_s)
    most = int(work_s / max(write_s, blocking_s))
    assert time_s(best) <= min(map(time_s, range(most + 1))) * (1 + 1e-9)


def test_the_best_interval_of_a_long_run_is_youngs() -> None:
    """sqrt(2 x cost x time between failures) (Young 1974)."""
    work_s, blocking_s, mtbf_s = 1e5, 1.0, 5e4
    interval_s = work_s / (best_count(work_s, blocking_s, 0.0, mtbf_s, 30.0) + 1)
    assert interval_s == pytest.approx(math.sqrt(2 * blocking_s * mtbf_s), rel=0.02)


def test_the_rates_are_those_of_the_studies() -> None:
    """What the studies conclude themselves from the counts that are quoted."""
    assert STUDIES["Meta RSC-1, A100"] / 16_384 == pytest.approx(1.8, rel=0.01)
    assert STUDIES["Meta RSC-1, A100"] / 131_072 == pytest.approx(0.23, rel=0.03)
    assert STUDIES["Meta Llama 3, H100"] / 16_384 == pytest.approx(3, rel=0.05)
    rates = [study.gpu_hours for study in PUBLISHED]
    assert rates == sorted(rates, reverse=True)


def fujitsu(*overrides: str) -> Prediction:
    return predict(job_of_config(load("abci_2048_open", list(overrides)).run))


def epochs_of(answer: Prediction) -> list[float]:
    """Its checkpoints, as epochs: time is spread evenly over them."""
    return [round(90 * at / answer.run.total_s, 6) for at in checkpoint_times_s(answer)]


def test_a_run_saves_as_its_config_says_and_after_each_evaluation() -> None:
    evaluated = [*range(2, 90, 4)]  # offset 1, period 4; the one after 90 ends the run
    assert epochs_of(fujitsu()) == evaluated
    assert epochs_of(fujitsu("checkpoint.every=3 epochs")) == [
        epoch for n in evaluated[:-1] for epoch in (n, n + 3)
    ] + [evaluated[-1], 89.0]
    assert epochs_of(fujitsu("checkpoint.enabled=false")) == []
    within = epochs_of(fujitsu("checkpoint.every=7 steps"))  # 15 steps an epoch
    assert len(within) > 180 and set(evaluated) < set(within)
    gaps = np.diff([0.0, *within])
    assert gaps.max() == pytest.approx(7 / 15, rel=1e-4) and gaps.min() > 0


def test_the_outlook_of_the_record_run() -> None:
    answer = fujitsu()
    found = outlook(answer, 1000.0)
    assert found.run_mtbf_h == pytest.approx(1000 / 512)
    assert found.no_failure == pytest.approx(math.exp(-found.undisturbed_s / 7031), rel=1e-3)
    assert found.expected_s > found.best_expected_s > found.undisturbed_s
    assert found.restart_s > load("abci_2048_open").run.watchdog.silence_s
    rarer = outlook(answer, 10_000.0)
    assert rarer.expected_s < found.expected_s
    assert rarer.best_checkpoints <= found.best_checkpoints
