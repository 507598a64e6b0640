"""What `base:`, `system:` and their likes on the command line mean."""

import re
from pathlib import Path

import pytest

from rn50.config.load import Loaded, load
from rn50.sweep.definition import load_sweep
from tests.config.test_load import load_text, write
from tests.conftest import refused


def layout_of(loaded: Loaded) -> tuple[int, int]:
    system = loaded.run.system
    return system.nodes, system.ranks_per_node


# --- base --------------------------------------------------------------------------------------


def test_a_file_beside_comes_before_the_preset_of_that_name(folder: Path) -> None:
    """The command line has the same rule."""
    write("there/quick", "name: mine\n")
    write("there/x.yaml", "base: quick\n")
    loaded = load("there/x.yaml")
    assert loaded.run.name == "mine"
    assert str(loaded.origins["name"]) == "there/quick:1"
    write("quick", "name: here\n")
    # beside the file, not beside the reader
    assert load("there/x.yaml").run.name == "mine"
    assert load("quick").run.name == "here"
    sweep = "name: s\nconfig: quick\nparameters: {optimizer.base_lr: {log: [0.1, 1]}}\n"
    assert load_sweep(write("there/sweep.yaml", sweep)).base.run.name == "mine"


# --- machines ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "name"),
    [("system: DGX-A100", "dgxa100"), ("system: {base: selene}", "dgxa100")],
)
def test_a_machine_by_name_is_the_command_lines(
    folder: Path, system: str, name: str
) -> None:
    loaded = load_text(f"base: quick\n{system}\n")
    assert loaded.run == load("quick", [f"system={name}"]).run
    assert loaded.run.system.name == "NVIDIA DGX A100"
    origin = str(loaded.origins["system.name"])
    assert re.fullmatch(rf".*config/system/{name}\.yaml:\d+", origin)


@pytest.mark.parametrize(
    "overrides",
    [
        ["system=dgxa100", "system.nodes=4"],
        ["system.nodes=4", "system=dgxa100"],
        ["system={base: dgxa100, nodes: 4}"],
    ],
)
def test_keys_of_a_named_machine_may_be_changed(
    folder: Path, overrides: list[str]
) -> None:
    loaded = load_text("base: quick\nsystem: {base: dgxa100, nodes: 4}\n")
    assert layout_of(loaded) == (4, 8)
    assert load("quick", overrides).run == loaded.run


@pytest.mark.parametrize(
    ("config", "machine", "layout"),
    [
        # six on a node would fill no whole nodes
        ("abci_2048_open", "summit", (512, 4)),
        ("quick", "dgxa100", (1, 2)),
        ("base", "dgxa100", (1, 8)),  # which has no machine, and so no ranks of its own
    ],
)
def test_another_machine_has_as_many_ranks(
    folder: Path, config: str, machine: str, layout: tuple[int, int]
) -> None:
    loaded = load(config, [f"system={machine}"])
    assert layout_of(loaded) == layout
    in_yaml = load_text(f"base: {config}\nsystem: {machine}\n")
    assert in_yaml.run.system == loaded.run.system
    if config == "abci_2048_open":
        assert str(loaded.origins["system.nodes"]) == "2048 ranks, as before"


def test_what_a_machine_says_is_shown_with_its_line(folder: Path) -> None:
    """Also where it says what is the default, or has as many ranks as before."""
    jitter = "system.performance.jitter=0.005"
    loaded = load(
        "smoke", ["system=local", "system.performance.launch_s=0.001", jitter]
    )
    origins = {path: str(origin) for path, _, origin in loaded.leaves()}
    assert origins["system.performance.jitter"] == "command line"
    assert "local.yaml:" in origins["system.nodes"]


@pytest.mark.parametrize(
    ("overrides", "layout"),
    [
        (["system=dgxa100", "system.ranks_per_node=4"], (1, 4)),
        (["system=summit", "system=dgxa100"], (256, 8)),  # the last counts
    ],
)
def test_nodes_or_ranks_that_are_said_are_not_laid_out(
    folder: Path, overrides: list[str], layout: tuple[int, int]
) -> None:
    assert layout_of(load("abci_2048_open", overrides)) == layout


def test_nothing_of_the_machine_below_is_left_but_where_results_go(
    folder: Path,
) -> None:
    system_yaml = "system: {results: /scratch/runs, interconnect: ours}"
    write("low.yaml", f"base: abci_2048_open\n{system_yaml}\n")
    system = load_text("base: low.yaml\nsystem: {base: dgxa100, nodes: 4}\n").run.system
    overrides = ["system.nodes=4", "system.results=/scratch/runs"]
    assert system == load("dgxa100_8", overrides).run.system
    assert system.job.modules == ()


@pytest.mark.parametrize(
    ("yaml_text", "overrides", "problem"),
    [
        ("system: sumit", [], 'x.yaml:1: system: .*"summit"'),
        ("name: x\nsystem: {base: sumit}", [], 'x.yaml:2: system.base: .*"summit"'),
        ("{}", ["system=sumit"], 'a YAML file or a machine .*"summit"'),
        ("system: x.yaml", [], "x.yaml:1: system: .*circle.* x.yaml -> x.yaml"),
        ("system: 3", [], "x.yaml:1: system: expected a section"),
    ],
)
def test_a_machine_that_does_not_exist(
    folder: Path, yaml_text: str, overrides: list[str], problem: str
) -> None:
    with refused(f"^{problem}"):
        load_text(yaml_text, *overrides)


def test_a_machine_without_ranks_is_refused(folder: Path) -> None:
    write("mine.yaml", "ranks_per_node: 0\n")
    with refused("mine.yaml:1: system.ranks_per_node: .*, found 0"):
        load("quick", ["system=mine.yaml"])
