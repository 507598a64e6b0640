"""Step time: what waits beside the computation, and points that no step can have."""

from dataclasses import replace
from pathlib import Path

import pytest

from rn50.config.load import load_system
from rn50.config.machine import Compute, Performance, Point, System
from rn50.predict.fit import build
from rn50.predict.hardware import Machine
from rn50.predict.step import PAUSE_S, step_time, straggler_s
from tests.conftest import refused
from tests.predict.systems import SYSTEMS


def machine(name: str, **performance: object) -> Machine:
    """The model of a described machine with some other figures."""
    model = build(name, SYSTEMS[name])
    changed = model.performance.model_copy(update=performance)
    return replace(model, performance=changed)


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
