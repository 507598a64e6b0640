"""`--system` of every command: a machine by name or YAML, the same as `system=` among overrides."""

import json
from pathlib import Path

import pytest

from rn50.sweep.definition import load_sweep
from tests.conftest import Rn50

MINE = "base: dgxa100\nname: mine\nranks_per_node: 4\n"


@pytest.mark.in_process
def test_predict_puts_a_recipe_there_with_as_many_ranks(
    rn50: Rn50, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(MINE)
    predict = ("predict", "abci_2048_open", "--json")
    out = rn50.output(*predict, "--system", str(mine))
    assert json.loads(out)["gpus"] == 2048
    assert out == rn50(*predict, f"system={mine}").stdout
    resized = rn50(*predict, "--system", "dgxa100", "--gpus", "4096")
    assert json.loads(resized.stdout)["gpus"] == 4096


@pytest.mark.parametrize(
    "arguments",
    [("launch", "smoke"), ("predict", "dgx1_8"), ("data", "bench", "smoke")],
)
def test_a_name_that_is_none_is_one_line_everywhere(
    rn50: Rn50, arguments: tuple[str, ...]
) -> None:
    line = rn50.error(*arguments, "--system", "dgxa100_8")
    assert line.startswith("rn50: error: a YAML file or a machine ")
    assert line.endswith("found 'dgxa100_8'; did you mean \"dgxa100\"?")


@pytest.mark.parametrize("machine", ["summit", "local"])
def test_a_roofline_of_unknown_speed_is_refused_before_anything_is_measured(
    rn50: Rn50, machine: str
) -> None:
    short = ("--passes", "1", "--images", "1")
    done = rn50("data", "bench", "smoke", *short, "--system", machine)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"rn50: error: {machine}: ")


def test_a_sweep_on_another_machine_is_another_definition(root: Path) -> None:
    path = root / "config" / "sweeps" / "quick_lr.yaml"
    original = load_sweep(path)
    moved = load_sweep(path, "dgxa100")
    assert moved.base.run.system.name == "NVIDIA DGX A100"
    assert moved.load_trial({}).run.system.name == "NVIDIA DGX A100"
    assert moved.definition() != original.definition()
