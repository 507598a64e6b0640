"""What a step's time goes into: the stamps of MXNet's engine, what is made of them."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from mxnet import nd

from rn50.config.values import profiled_steps
from rn50.logging.metrics_read import read_metrics
from rn50.train.step_times import PHASES, StepTimes, percentiles, phases_ms

# Two steps: host asks, has the batch; forward, backward, reduction, update are done, in s.
STAMPS = np.array([[1.0, 1.1, 2.0, 4.0, 4.5, 4.6], [1.2, 5.0, 6.0, 8.0, 7.9, 8.1]])


def test_phases_add_up_to_the_step() -> None:
    ms = phases_ms(STAMPS, begun_s=0.5)
    # The second batch came 0.4 s after the device was free; its sums were there before backward's
    # end, as a rank alone sees them. No batch lay ready.
    assert ms.round(3).tolist() == [
        [500, 100, 900, 2000, 500, 100, 0],
        [0, 400, 1000, 2000, 0, 100, 0],
    ]


def test_a_step_after_an_evaluation_begins_with_its_own_request() -> None:
    ms = phases_ms(STAMPS, begun_s=np.nan)
    assert ms[0].round(3).tolist() == [0, 100, 900, 2000, 500, 100, 0]
    assert len(phases_ms(STAMPS[:0], np.nan)) == 0
    # the batch came before the device was free
    ready = phases_ms(STAMPS[:1], begun_s=1.5)
    assert ready[0].round(3).tolist() == [0, 0, 500, 2000, 500, 100, 400]


def test_percentiles_fit_a_record(tmp_path: Path) -> None:
    times = percentiles(phases_ms(STAMPS, 0.5))
    assert times["step_p50_ms"] == pytest.approx(3800)
    assert times["step_p90_ms"] == pytest.approx(4040)
    assert times["step_max_ms"] == pytest.approx(4100)
    record = {"kind": "steps", "time_s": 1.0, "step": 2, **times}
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(record) + "\n")
    assert read_metrics(path) == (record,)


def test_the_engine_stamps_what_it_has_done() -> None:
    """Backward is a product of 0.1 s here."""
    square = nd.ones((1000, 1000))
    times = StepTimes(4)
    points = []
    for step in range(1, 8):
        times.begin(step)
        times.have_batch()
        times.after("forward", [square])
        backward = nd.dot(square, square)
        for phase in ("backward", "reduction", "update"):
            times.after(phase, [backward])
        points.append(times.log_point())
        backward.wait_to_read()
    nd.waitall()
    points.append(times.log_point())
    ms = times.all_ms()
    assert len(ms) == 7
    assert np.array_equal(np.concatenate(points), ms)
    steps_ms = ms[:, : len(PHASES)].sum(axis=1)
    shares = ms[:, PHASES.index("backward")] / steps_ms
    assert np.median(shares) > 0.8  # of the steps: other work may delay one of them


def take_step(times: StepTimes, step: int) -> None:
    times.begin(step)
    times.have_batch()
    for phase in PHASES[2:]:
        times.after(phase, [nd.ones(1)])


def test_steps_without_this_rank_are_in_no_figure() -> None:
    """Its share of the batch is none in steps 7 to 40: it asks for no batch in them."""
    times = StepTimes(4)
    for step in range(1, 7):
        take_step(times, step)
        if step == 4:
            nd.waitall()
            times.log_point()
    nd.waitall()
    time.sleep(0.2)
    for step in (41, 42):
        take_step(times, step)
    nd.waitall()
    assert len(times.log_point()) == 2
    ms = times.all_ms()
    assert len(ms) == 8
    assert ms[6, PHASES.index("host")] == 0  # what lay between is no waiting


@pytest.mark.parametrize(
    ("setting", "steps"),
    [("20", range(11, 31)), ("7-7", range(7, 8)), (None, range(0))],
)
def test_steps_to_profile(setting: str | None, steps: range) -> None:
    assert profiled_steps(setting) == steps
