"""Figures of a machine's file: their units are checked, and points stay with their GPU."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rn50.config.layout import _SHEET
from rn50.config.load import load, load_system
from rn50.config.machine import Performance
from rn50.config.values import Measure
from tests.conftest import refused
from tests.predict.systems import SYSTEMS, about

MEASURES: dict[str, Measure] = {}
for _name, _field in Performance.model_fields.items():
    for _item in (*_field.metadata, *getattr(_field.annotation, "__args__", ())):
        for _part in (_item, *getattr(_item, "__metadata__", ())):
            if isinstance(_part, Measure):
                MEASURES[_name] = _part


def misread() -> Iterator[tuple[str, str, float, float]]:
    """(key, unit, value in it, plain value) of every figure of every machine's file."""
    seen = set()
    for name in SYSTEMS:
        for key, measure in MEASURES.items():
            value = getattr(about(name), key)
            for unit, factor in measure.units.items():
                if value and (key, value, unit) not in seen:
                    seen.add((key, value, unit))
                    yield key, unit, value / factor, value


def test_all_rates_and_latencies_are_measures() -> None:
    units = ("_flops_per_s", "bytes_per_s", "_hz", "latency_s", "memory_bytes")
    for name in Performance.model_fields:
        assert (name in MEASURES) or not name.endswith(units), name


@pytest.mark.parametrize("key", MEASURES)
def test_a_figure_in_another_unit_is_refused_with_what_to_write(
    key: str, tmp_path: Path
) -> None:
    """The data sheets of all machines that we have, in TFLOP/s, GB/s, MHz, GB, Gbit/s, us."""
    file = tmp_path / "mine.yaml"
    cases = [case for case in misread() if case[0] == key]
    assert cases
    for _, unit, written, plain in cases:
        file.write_text(f"name: mine\nperformance:\n  {key}: {written!r}\n")
        cure = rf"{written:g} looks like {unit}: write {plain:.6g}".replace("+", r"\+")
        with refused(rf"mine.yaml:3: system.performance.{key}: expected a .*{cure}"):
            load_system(str(file))


@pytest.mark.parametrize("key", _SHEET)
@pytest.mark.parametrize("name", SYSTEMS)
def test_points_of_another_gpu_are_refused_with_the_cure(
    name: str, key: str, tmp_path: Path
) -> None:
    performance = about(name)
    precisions = [
        field for field in ("fp16", "fp32", "tf32") if getattr(performance, field)
    ]
    file = tmp_path / "mine.yaml"
    value = getattr(performance, key)
    base = f"base: {name}\nperformance:\n"
    doubled = f"  {key}: {2 * (value or 1e14)!r}\n"
    file.write_text(base + doubled)
    if not precisions or key not in performance.model_fields_set or value is None:
        load_system(str(file))
        return
    cure = ", ".join(f"{precision}: null" for precision in precisions)
    with refused(
        f"mine.yaml:3: system.performance.{key}: .*another GPU; remove them by `{cure}`"
    ):
        load_system(str(file))
    nulls = [f"  {precision}: null\n" for precision in precisions]
    file.write_text("".join([base, doubled, *nulls]))
    load_system(str(file))


def test_the_command_line_gives_no_gpu_another_data_sheet() -> None:
    with refused("command line: system.performance.clock_hz: .*`fp16: null`"):
        load("dgxh100_8", ["system.performance.clock_hz=1.2e9"])


POINT = "{gpus: 64, batch: 50, step_s: 0.02, source: mine}"


@pytest.mark.parametrize(
    "network", ["nics=1", "jitter=0.05", "tree_latency_s=9e-5", "switches_reduce=false"]
)
def test_points_are_of_one_network(network: str) -> None:
    """A run's config has the same rule; the network of the points may be said again."""
    changed = f"system.performance.{network}"
    with refused("command line: system.performance.*another network; .*`fp16: null`"):
        load("dgxh100_8", [changed])
    load("dgxh100_8", ["system.performance.nics=8", "system.ranks_per_node=4"])
    load("dgxh100_8", [changed, "system.performance.fp16=null"])
    load("dgxh100_8", [changed, f"system.performance.fp16.points=[{POINT}]"])
