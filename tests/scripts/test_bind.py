"""scripts/bind.sh on topologies written down as text, and on this machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from rn50.train.process_info import LAUNCHED_BY, RankVariables
from tests.waiting import finished

TOPOLOGIES = Path(__file__).resolve().parent.parent / "golden" / "topologies"
CHOICE = re.compile(
    r"bind: local rank (\d+) of (\d+): GPU (\S+)(?: \(\S+\))?, NUMA node (\S+), cores (\S+), "
    r"HCA (\S+)(?: \((.*)\))?"
)


def build(name: str, root: Path) -> Path:
    """A sysfs below `root` as `tests/golden/topologies/NAME.txt` describes it."""
    offset = 0
    lines = [
        line.split() for line in (TOPOLOGIES / f"{name}.txt").read_text().splitlines()
    ]
    for kind, *words in lines:
        if kind == "threads":
            offset = int(words[0])
    for kind, *words in lines:
        if kind == "node":
            node = root / f"devices/system/node/node{words[0]}"
            node.mkdir(parents=True)
            (node / "cpulist").write_text(words[1] + "\n")
            first = words[1].partition(",")[0]
            low, high = map(int, first.split("-"))
            for core in range(low, high + 1):
                for cpu in (core, core + offset):
                    topology = root / f"devices/system/cpu/cpu{cpu}/topology"
                    topology.mkdir(parents=True)
                    (topology / "thread_siblings_list").write_text(
                        f"{core},{core + offset}\n"
                    )
        elif kind == "pci":
            path, numa, what, *hca = words
            device = root / "devices" / path
            device.mkdir(parents=True)
            (device / "vendor").write_text("0x10de\n" if what == "gpu" else "0x15b3\n")
            (device / "class").write_text(
                "0x030200\n" if what == "gpu" else "0x020700\n"
            )
            (device / "numa_node").write_text(f"{numa}\n")
            address = root / "bus/pci/devices" / device.name
            address.parent.mkdir(parents=True, exist_ok=True)
            address.symlink_to(device)
            if hca:
                adapter = root / "class/infiniband" / hca[0]
                (adapter / "ports/1").mkdir(parents=True)
                (adapter / "ports/1/state").write_text("4: ACTIVE\n")
                (adapter / "device").symlink_to(device)
    return root


def choose(root: Path, script: Path, size: int) -> list[tuple[str, ...]]:
    """(GPU, NUMA node, cores, HCA, how) of each local rank."""
    chosen = []
    for rank in range(size):
        variables = {
            "PATH": os.environ["PATH"],
            "RN50_SYSFS": str(root),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(size),
        }
        done = finished(
            [script, "--print"],
            env=variables,
        )
        assert done.returncode == 0, done.stderr
        match = CHOICE.fullmatch(done.stdout.strip())
        assert match, done.stdout
        assert match.groups()[:2] == (str(rank), str(size))
        chosen.append(match.groups()[2:])
    return chosen


@pytest.fixture
def script(root: Path) -> Path:
    return root / "scripts/bind.sh"


def test_dgxa100(tmp_path: Path, script: Path) -> None:
    """GPUs 0 and 1 lie on NUMA node 3, not on the first; the storage's adapters stay free."""
    root = build("dgxa100", tmp_path)
    places = [("3", "48-55"), ("3", "56-63"), ("1", "16-23"), ("1", "24-31"),
              ("7", "112-119"), ("7", "120-127"), ("5", "80-87"), ("5", "88-95")]  # fmt: skip
    by_path = choose(root, script, 8)
    assert [choice[1:3] for choice in by_path] == places
    assert [choice[3] for choice in by_path] == [
        f"mlx5_{number}" for number in (1, 0, 2, 3, 6, 7, 8, 9)
    ]


def test_abci(tmp_path: Path, script: Path) -> None:
    """As Fujitsu bound in 2019."""
    assert choose(build("abci", tmp_path), script, 4) == [
        (
            str(n),
            str(n // 2),
            f"{10 * n}-{10 * n + 9}",
            f"mlx5_{n // 2}",
            "of 1 nearest",
        )
        for n in range(4)
    ]


def test_a_port_that_is_down_is_passed_over(tmp_path: Path, script: Path) -> None:
    root = build("abci", tmp_path)
    (root / "class/infiniband/mlx5_1/ports/1/state").write_text("1: DOWN\n")
    assert {choice[3] for choice in choose(root, script, 4)} == {"mlx5_0"}


def test_here_it_binds_and_becomes_the_command(script: Path) -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("one core: nothing to choose from")
    taken = []
    for rank in range(2):
        done = finished(
            [script, "grep", "Cpus_allowed_list", "/proc/self/status"],
            env=os.environ | {"SLURM_LOCALID": str(rank), "SLURM_NTASKS_PER_NODE": "2"},
            check=True,
        )
        match = CHOICE.match(done.stderr.splitlines()[-1])
        assert match
        assert match[1] == str(rank)
        assert done.stdout.split()[1] == match[5]
        taken.append(match[5])
    assert taken[0] != taken[1]


@pytest.mark.parametrize("row", range(-1, len(LAUNCHED_BY)))
def test_launchers_are_asked_in_the_order_of_the_table(
    row: int, tmp_path: Path, script: Path
) -> None:
    """Beside the variables of a launcher (-1: one that is named to the ranks) stand those of all
    that follow."""
    own = RankVariables("A_RANK", "A_SIZE", "A_LOCAL_RANK", "A_LOCAL_SIZE")
    asked, *others = [own, *LAUNCHED_BY][row + 1 :]
    variables = dict.fromkeys([str(name) for it in others for name in it], "9")
    variables |= dict(zip(map(str, asked), "4513", strict=True))
    variables |= {
        "RN50_RANK_VARIABLES": ",".join(map(str, own)),
        "RN50_SYSFS": str(tmp_path),
    }
    done = finished([script, "--print"], env={"PATH": os.environ["PATH"], **variables})
    size = 3 if asked.local_size else 9
    assert done.stdout.startswith(f"bind: local rank 1 of {size}:"), done
