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
    precision = next(key for key in ("fp16", "fp32", "tf32") if getattr(about, key) is not None)
    return predict(
        job_of_system(name, system, gpus, batch, precision=precision, algorithm=algorithm)
    )


@settings(max_examples=150)
@given(st.sampled_from(sorted(SYSTEMS)), st.integers(1, 8192), st.integers(1, 512))
def test_every_answer_is_finite_and_inside_its_interval(name: str, gpus: int, batch: int) -> None:
    batch = min(batch, 1_281_167 // gpus)
    answer = ask(name, gpus, batch)
    step_low, step_high = answer.step_interval_s
    low, high = answer.time_interval_s
    assert 0 < step_low < answer.step.total_s < step_high < math.inf
    assert 0 < low < answer.run.total_s < high < math.inf
    assert 0 < answer.efficiency <= 1 + 1e-9
    assert all(value >= 0 for value in (*answer.step.parts.values(), *answer.run.parts.values()))
    assert 1 <= answer.epochs < 2000


@settings(max_examples=60)
@given(st.sampled_from(sorted(SYSTEMS)), st.integers(0, 6), st.integers(4, 256))
def test_a_step_grows_with_the_batch_and_with_whole_nodes(
    name: str, doublings: int, batch: int
) -> None:
    """In steps of twice the nodes: more ranks wait for more stragglers and hops, never for fewer.
    Of rings: a torus of 8 x 16 has shorter ways through shared NICs than one of 8 x 8.

    Batch norm's exchanges end at a batch that needs none, so a batch is compared with its double
    only where neither has any.
    """
    per_node = min(8, SYSTEMS[name].ranks_per_node)
    gpus = per_node << doublings
    step = ask(name, gpus, batch, "ring").step
    assert ask(name, 2 * gpus, batch, "ring").step.total_s >= step.total_s * (1 - 1e-9)
    larger = ask(name, gpus, 2 * batch, "ring").step
    if step.bn_sync_s == larger.bn_sync_s == 0:
        assert larger.total_s > step.total_s


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_the_interval_widens_away_from_the_points(name: str) -> None:
    widths = []
    for gpus in (64, 512, 4096):
        answer = ask(name, gpus, 32)
        widths.append(answer.step_interval_s[1] / answer.step.total_s)
    assert widths == sorted(widths)
