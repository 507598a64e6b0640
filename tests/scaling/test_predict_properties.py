"""Whatever system, size and batch one asks for, the answer is sane."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rn50.config.load import load_system
from rn50.config.machine import System
from rn50.config.names import PRESETS
from rn50.scaling.gpu import largest_batch
from rn50.scaling.machine import known_precisions
from rn50.scaling.predict import Prediction, job_of_system, predict

SYSTEMS = {
    path.stem: system
    for path in sorted((PRESETS / "system").glob("*.yaml"))
    if (system := load_system(str(Path(path)))).performance is not None
}


def ask(name: str, gpus: int, batch: int, algorithm: str | None = None) -> Prediction:
    system: System = SYSTEMS[name]
    about = system.performance
    assert about is not None
    precision = known_precisions(about)[0]
    return predict(
        job_of_system(name, system, gpus, batch, precision=precision, algorithm=algorithm)
    )


@settings(max_examples=150)
@given(st.sampled_from(sorted(SYSTEMS)), st.integers(1, 8192), st.integers(1, 512))
def test_every_answer_is_finite_and_inside_its_interval(name: str, gpus: int, batch: int) -> None:
    system = SYSTEMS[name]
    if system.performance is not None and system.performance.square_torus:
        gpus = 1 << gpus.bit_length()
    elif gpus > system.ranks_per_node:  # whole nodes
        gpus += -gpus % system.ranks_per_node
    assert system.performance is not None
    most = largest_batch(system.performance.memory_bytes or 1e12, "fp32")
    answer = ask(name, gpus, min(batch, 1_281_167 // gpus, most))
    step_low, step_high = answer.step_interval_s
    low, high = answer.time_interval_s
    assert 0 < step_low < answer.step.total_s < step_high < math.inf
    assert 0 < low < answer.run.total_s < high < math.inf
    assert 0 < answer.efficiency <= 1 + 1e-9
    assert all(value >= 0 for value in (*answer.step.parts.values(), *answer.run.parts.values()))
    assert 1 <= answer.epochs < 2000


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_the_interval_widens_away_from_the_points(name: str) -> None:
    widths = []
    largest = max((point.gpus for point in ask(name, 1, 32).machine.points), default=1)
    node = SYSTEMS[name].ranks_per_node
    for times in (1, 8, 64):
        whole = -(-times * largest // node) * node if node <= 64 else times * largest
        answer = ask(name, whole, min(16, 1_281_167 // whole))
        widths.append(answer.step_interval_s[1] / answer.step.total_s)
    assert widths == sorted(widths)
