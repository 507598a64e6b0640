"""Step time: monotone where physics is, and equal to its calibration."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rn50.config.load import load_system
from rn50.config.machine import Compute, Point, System
from rn50.config.names import PRESETS
from rn50.scaling.machine import Machine
from rn50.scaling.step import (
    PAUSE_S,
    bn_doublings,
    build,
    exposed,
    group_cost_s,
    step_time,
    straggler_s,
)
from tests.conftest import refused

MODELLED = [
    path.stem
    for path in sorted((PRESETS / "system").glob("*.yaml"))
    if load_system(path.stem).performance is not None
]
FUZZ = settings(max_examples=40)
NAMES = st.sampled_from(["abci", "abci_nnl", "dgx1", "dgxa100", "dgxh100", "tpu_v3"])


def machine(name: str, precision: str = "fp16") -> Machine:
    return build(name, load_system(name), precision)


@pytest.mark.parametrize("name", MODELLED)
def test_a_machine_without_a_data_sheet_passes_through_its_points(name: str) -> None:
    """One with a data sheet weighs both: NVIDIA's 64 L40S are the farthest from it."""
    system = load_system(name)
    assert system.performance is not None
    for precision in ("fp16", "fp32", "tf32"):
        compute: Compute | None = getattr(system.performance, precision)
        if compute is None:
            continue
        model = machine(name, precision)
        for point in compute.points:
            step = step_time(model, point.gpus, point.batch)
            off = 0.02 if name == "tpu_v4" else 1e-6  # its line would start below zero
            assert step.total_s == pytest.approx(
                point.step_s, rel=0.11 if model.has_sheet else off
            )


def test_many_points_outweigh_the_data_sheet() -> None:
    """One that is 20 % off moves the model by two thirds of that, ten of them by nearly all."""
    system = load_system("dgxa100")
    about = system.performance
    assert about is not None
    bare = about.model_copy(update={"fp16": None, "other_points": ()})
    sheet = build("a", system.model_copy(update={"performance": bare}))
    step_s = 1.2 * step_time(sheet, 8, 408).total_s

    def found(count: int) -> float:
        points = (Point(gpus=8, batch=408, step_s=step_s, source="test"),) * count
        known = bare.model_copy(update={"fp16": Compute(points=points)})
        model = build("a", system.model_copy(update={"performance": known}))
        return step_time(model, 8, 408).total_s / step_s

    assert 0.85 < found(1) < 0.97 < found(10) < 1.001


@FUZZ
@given(name=NAMES, gpus=st.integers(2, 8192), batch=st.integers(1, 512))
def test_groups_run_one_after_another_and_not_before_they_are_ready(
    name: str, gpus: int, batch: int
) -> None:
    groups = step_time(machine(name), gpus, batch, groups="equal_bytes(8)").groups
    for group, after in pairwise(groups):
        assert group.ready_s <= group.start_s < group.end_s <= after.start_s


def test_overlap_hides_what_one_group_exposes() -> None:
    one = step_time(machine("abci"), 256, 64, groups="single")
    many = step_time(machine("abci"), 256, 64, groups="cubic(3)")
    assert many.exposed_s < one.exposed_s


def test_auto_is_the_faster_of_ring_and_trees() -> None:
    dgx = machine("dgxa100")
    for gpus, n_bytes in ((16, 5e7), (1024, 1e5), (1024, 5e7)):
        times = {
            name: group_cost_s(dgx, gpus, n_bytes, name)[1]
            for name in ("ring", "double_tree")
        }
        name, seconds = group_cost_s(dgx, gpus, n_bytes, "auto")
        assert seconds == min(times.values()) == times[name]


def test_stragglers_follow_extreme_values_and_then_interruptions() -> None:
    """Expected maximum of p normal draws: 1.163 sigma at 5, 3.241 at 1,000 (tables of order
    statistics)."""
    five = straggler_s(5, 1.0, 1.0, jitter=1.0, os_noise_fraction=0.0)
    thousand = straggler_s(
        1000,
        1.0,
        1.0,
        jitter=1.0,
        os_noise_fraction=0.0,
    )
    assert five == pytest.approx(1.163, rel=0.02)
    assert thousand == pytest.approx(3.241, rel=0.01)
    rare = [
        straggler_s(p, 0.0, 0.05, jitter=0.0, os_noise_fraction=1e-6)
        for p in (1000, 2000)
    ]
    assert rare[1] == pytest.approx(2 * rare[0], rel=0.01)
    assert straggler_s(
        10**9, 0.0, 0.05, jitter=0.0, os_noise_fraction=1e-3
    ) == pytest.approx(PAUSE_S)
    assert straggler_s(1, 1.0, 1.0, jitter=1.0, os_noise_fraction=1.0) == 0


def test_batch_norm_groups_are_nvidias() -> None:
    """Groups of 2 at batches 15 and 16, none at 35, as in NVIDIA's entries; 4 at most."""
    dgx = machine("dgxa100")
    doublings = [bn_doublings(dgx, 4320, batch) for batch in (4, 15, 16, 35, 408)]
    assert doublings == pytest.approx([2, 1, 0.91, 0, 0], abs=0.01)
    assert step_time(dgx, 4320, 15).bn_sync_s > 0
    assert bn_doublings(dgx, 1, 1) == 0


def test_input_holds_a_step_back() -> None:
    dgx = machine("dgx1")
    slow = dgx.performance.model_copy(update={"node_images_per_s": 5000.0})
    step = step_time(replace(dgx, performance=slow), 8, 208)
    assert step.input_s > 0
    assert step.total_s == pytest.approx(8 * 208 / 5000)


def test_what_no_machine_can_be_is_refused() -> None:
    with refused("performance section"):
        build("bare", System())
    with refused("precision one of fp16, fp32 expected, found int8"):
        build("dgx1", load_system("dgx1"), "int8")
    base = load_system("dgxa100")
    assert base.performance is not None
    falling = Compute(
        points=(
            Point(gpus=8, batch=64, step_s=0.1, source="test"),
            Point(gpus=8, batch=128, step_s=0.05, source="test"),
        )
    )
    unknown = {"fp16": falling, "tensor_flops_per_s": None}
    bad = base.model_copy(
        update={"performance": base.performance.model_copy(update=unknown)}
    )
    with refused("rising line"):
        build("falling", bad)


# --- wait-free backpropagation ------------------------------------------------------------------

GROUPS = st.lists(
    st.tuples(st.floats(0, 1), st.floats(0, 1)),
    min_size=1,
    max_size=20,
)


def test_backward_may_end_after_the_last_group_is_ready() -> None:
    assert exposed([1.0], [1.0], backward_s=5.0) == (5.0, 0.0, (1.0,))
    assert exposed([], []).exposed_s == 0.0


@given(groups=GROUPS)
def test_between_the_last_group_and_all_of_them(
    groups: list[tuple[float, float]],
) -> None:
    ready_s = sorted(ready for ready, _ in groups)
    cost_s = [cost for _, cost in groups]
    result = exposed(ready_s, cost_s)
    assert cost_s[-1] - 1e-12 <= result.exposed_s <= sum(cost_s) + 1e-12
    chains = [start + sum(cost_s[i:]) for i, start in enumerate(ready_s)]
    assert result.finish_s == pytest.approx(max(chains))
