"""Step time: monotone where physics is, and equal to its calibration."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rn50.config.load import load_system
from rn50.config.machine import Compute, Performance, Point, System
from rn50.predict.fit import build
from rn50.predict.hardware import Machine
from rn50.predict.layer_table import backward_fraction
from rn50.predict.step import PAUSE_S, step_time, straggler_s
from tests.conftest import refused
from tests.predict.systems import SYSTEMS, about, with_performance

NAMES = ("abci", "abci_nnl", "dgx1", "dgxa100", "dgxh100", "tpu_v3")


def machine(name: str, **performance: object) -> Machine:
    """The model of a described machine with some other figures."""
    model = build(name, SYSTEMS[name])
    changed = model.performance.model_copy(update=performance)
    return replace(model, performance=changed)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_machine_without_a_data_sheet_passes_through_its_points(name: str) -> None:
    """One with a data sheet weighs both: NVIDIA's 64 L40S are the farthest from it."""
    for precision in ("fp16", "fp32", "tf32"):
        compute: Compute | None = getattr(about(name), precision)
        if compute is None:
            continue
        model = build(name, SYSTEMS[name], precision)
        assert model.fixed_s >= 0
        off = 0.02 if name == "tpu_v4" else 1e-6  # its line would start below zero
        if model.has_sheet:
            off = 0.11
        for point in compute.points:
            step = step_time(model, point.gpus, point.batch)
            assert step.total_s == pytest.approx(point.step_s, rel=off)


@pytest.mark.parametrize(
    ("fixed_s", "points", "key"),
    [
        (0.2, [(10, 0.1), (20, 0.3)], "fp32.fixed_s"),
        (0.1, [(10, 0.3), (20, 0.1)], "fp32.fixed_s"),
        (0.0, [(10, 0.3), (20, 0.1)], "points"),
        (0.0, [(1000, 0.001), (1001, 100.0)], "points"),
    ],
)
def test_points_that_no_step_can_have_are_refused(
    fixed_s: float, points: list[tuple[int, float]], key: str, tmp_path: Path
) -> None:
    path = tmp_path / "odd.yaml"
    lines = [f"performance:\n  fp32:\n    fixed_s: {fixed_s}\n    points:\n"]
    for batch, step_s in points:
        point = f"{{gpus: 1, batch: {batch}, step_s: {step_s}, source: x}}"
        lines.append(f"    - {point}\n")
    path.write_text("".join(lines))
    with refused(key):
        build("odd", load_system(str(path)), "fp32")


def test_many_points_outweigh_the_data_sheet() -> None:
    """One that is 20 % off moves the model by two thirds of that, ten of them by nearly all."""
    bare = with_performance("dgxa100", fp16=None, other_points=())
    sheet = build("a", bare)
    step_s = 1.2 * step_time(sheet, 8, 408).total_s
    point = Point(gpus=8, batch=408, step_s=step_s, source="test")

    def reached(count: int) -> float:
        compute = Compute(points=(point,) * count)
        described = with_performance("dgxa100", fp16=compute, other_points=())
        return step_time(build("a", described), 8, 408).total_s / step_s

    assert 0.85 < reached(1) < 0.97 < reached(10) < 1.001


@settings(max_examples=40)
@given(
    name=st.sampled_from(NAMES), nodes=st.integers(1, 1024), batch=st.integers(1, 512)
)
def test_a_group_starts_when_it_is_ready_and_the_one_before_has_ended(
    name: str, nodes: int, batch: int
) -> None:
    gpus = nodes * SYSTEMS[name].ranks_per_node
    step = step_time(machine(name), gpus, batch, groups="equal_bytes(8)")
    free_s = 0.0
    for group in step.groups:
        assert group.start_s == max(free_s, group.ready_s)
        assert group.start_s < group.end_s
        free_s = group.end_s
    backward_s = step.backward_s + backward_fraction() * step.launch_s
    exposed_s = max(0.0, free_s - backward_s)
    assert step.exposed_s == pytest.approx(exposed_s, abs=1e-12)


def test_stragglers_follow_extreme_values_and_then_interruptions() -> None:
    """Expected maximum of p normal draws: 1.163 sigma at 5, 3.241 at 1,000 (tables of order
    statistics)."""
    jittery = machine("dgx1", jitter=1.0, os_noise_fraction=0.0)
    for ranks, sigmas in ((1, 0.0), (5, 1.163), (1000, 3.241)):
        waited_s = straggler_s(jittery, ranks, 1.0, 1.0)
        assert waited_s == pytest.approx(sigmas, rel=0.02)
    noisy = machine("dgx1", jitter=0.0, os_noise_fraction=1e-6)
    once_s = straggler_s(noisy, 1000, 0.0, 0.05)
    twice_s = straggler_s(noisy, 2000, 0.0, 0.05)
    always_s = straggler_s(noisy, 10**12, 0.0, 0.05)
    assert twice_s == pytest.approx(2 * once_s, rel=0.01)
    assert always_s == pytest.approx(PAUSE_S)


def test_input_holds_a_step_back() -> None:
    slow = machine("dgx1", node_images_per_s=5000.0)
    step = step_time(slow, 8, 208)
    assert step.input_s > 0
    assert step.total_s == pytest.approx(8 * 208 / 5000)


def test_what_no_machine_can_be_is_refused() -> None:
    with refused("performance section"):
        build("bare", System())
    with refused("precision one of fp16, fp32 expected, found int8"):
        build("dgx1", load_system("dgx1"), "int8")
    points = [
        Point(gpus=8, batch=batch, step_s=6.4 / batch, source="test")
        for batch in (64, 128)
    ]
    compute = Compute(points=tuple(points))
    with refused("rising line"):
        build("falling", System(performance=Performance(fp16=compute)))
