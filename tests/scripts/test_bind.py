"""scripts/bind.sh on topologies written down as text, and on this machine."""

import os
import re
from pathlib import Path

import pytest

from rn50.train.process_info import LAUNCHED_BY, RankVariables
from tests.conftest import write_file
from tests.waiting import finished

TOPOLOGIES = Path(__file__).resolve().parent.parent / "golden" / "topologies"
CHOICE = re.compile(
    r"bind: local rank (\d+) of (\d+): GPU (\S+)(?: \(\S+\))?, NUMA node (\S+), cores (\S+), "
    r"HCA (\S+)(?: \((.*)\))?"
)


def put(path: Path, content: str) -> None:
    write_file(path, f"{content}\n")


def build(name: str, root: Path) -> Path:
    """A sysfs below `root` as `tests/golden/topologies/NAME.txt` describes it; its `threads` is the
    distance of a core's two threads."""
    description = (TOPOLOGIES / f"{name}.txt").read_text()
    lines = [line.split() for line in description.splitlines()]
    offset = 0
    for record, *fields in lines:
        if record == "threads":
            offset = int(fields[0])
    for record, *fields in lines:
        if record == "node":
            number, cpus = fields
            put(root / f"devices/system/node/node{number}/cpulist", cpus)
            first, _, _ = cpus.partition(",")
            low, high = map(int, first.split("-"))
            for core in range(low, high + 1):
                for cpu in (core, core + offset):
                    topology = root / f"devices/system/cpu/cpu{cpu}/topology"
                    siblings = f"{core},{core + offset}"
                    put(topology / "thread_siblings_list", siblings)
        elif record == "pci":
            add_device(root, *fields)
    return root


def add_device(root: Path, path: str, numa: str, device: str, hca: str = "") -> None:
    folder = root / "devices" / path
    vendor = "0x15b3"
    number = "0x020700"
    if device == "gpu":
        vendor = "0x10de"
        number = "0x030200"
    put(folder / "vendor", vendor)
    put(folder / "class", number)
    put(folder / "numa_node", numa)
    address = root / "bus/pci/devices" / folder.name
    address.parent.mkdir(parents=True, exist_ok=True)
    address.symlink_to(folder)
    if hca:
        adapter = root / "class/infiniband" / hca
        put(adapter / "ports/1/state", "4: ACTIVE")
        (adapter / "device").symlink_to(folder)


def choose(root: Path, script: Path, size: int) -> list[str]:
    """GPU, NUMA node, cores and HCA of each local rank."""
    chosen = []
    for rank in range(size):
        variables = {
            "PATH": os.environ["PATH"],
            "RN50_SYSFS": str(root),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(size),
        }
        done = finished([script, "--print"], env=variables, check=True)
        match = CHOICE.fullmatch(done.stdout.strip())
        assert match, done.stdout
        local_rank, local_size, *binding = match.groups()
        assert local_rank == str(rank)
        assert local_size == str(size)
        chosen.append(" ".join(binding[:4]))
    return chosen


@pytest.fixture
def script(root: Path) -> Path:
    return root / "scripts/bind.sh"


DGXA100 = """
0 3 48-55 mlx5_1
1 3 56-63 mlx5_0
2 1 16-23 mlx5_2
3 1 24-31 mlx5_3
4 7 112-119 mlx5_6
5 7 120-127 mlx5_7
6 5 80-87 mlx5_8
7 5 88-95 mlx5_9
"""
ABCI = """
0 0 0-9 mlx5_0
1 0 10-19 mlx5_0
2 1 20-29 mlx5_1
3 1 30-39 mlx5_1
"""


@pytest.mark.parametrize(
    ("name", "bindings"),
    [
        # GPUs 0 and 1 lie on NUMA node 3, not on the first; the storage's adapters stay free.
        ("dgxa100", DGXA100),
        # As Fujitsu bound in 2019.
        ("abci", ABCI),
    ],
)
def test_each_rank_has_the_cores_and_the_adapter_near_its_gpu(
    name: str, bindings: str, tmp_path: Path, script: Path
) -> None:
    expected = bindings.split("\n")[1:-1]
    assert choose(build(name, tmp_path), script, len(expected)) == expected


def test_a_port_that_is_down_is_passed_over(tmp_path: Path, script: Path) -> None:
    root = build("abci", tmp_path)
    put(root / "class/infiniband/mlx5_1/ports/1/state", "1: DOWN")
    assert all(choice.endswith("mlx5_0") for choice in choose(root, script, 4))


def test_here_it_binds_and_becomes_the_command(script: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core: nothing to choose from")
    cores = set()
    for rank in ("0", "1"):
        variables = {"SLURM_LOCALID": rank, "SLURM_NTASKS_PER_NODE": "2"}
        done = finished(
            [script, "grep", "Cpus_allowed_list", "/proc/self/status"],
            env=os.environ | variables,
            check=True,
        )
        match = CHOICE.match(done.stderr.splitlines()[-1])
        assert match
        assert match[1] == rank
        assert done.stdout.split()[1] == match[5]
        cores.add(match[5])
    assert len(cores) == 2


@pytest.mark.parametrize("row", range(-1, len(LAUNCHED_BY)))
def test_launchers_are_asked_in_the_order_of_the_table(
    row: int, tmp_path: Path, script: Path
) -> None:
    """Beside the variables of a launcher (-1: one that is named to the ranks) stand those of all
    that follow."""
    named = RankVariables("A_RANK", "A_SIZE", "A_LOCAL_RANK", "A_LOCAL_SIZE")
    launchers = [named, *LAUNCHED_BY]
    first, *followers = launchers[row + 1 :]
    variables = {
        "PATH": os.environ["PATH"],
        "RN50_RANK_VARIABLES": ",".join(map(str, named)),
        "RN50_SYSFS": str(tmp_path),
    }
    for launcher in followers:
        variables |= dict.fromkeys(map(str, launcher), "9")
    variables |= zip(map(str, first), "4513", strict=True)
    done = finished([script, "--print"], env=variables)
    size = 3 if first.local_size else 9
    assert done.stdout.startswith(f"bind: local rank 1 of {size}:"), done
