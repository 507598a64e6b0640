"""Ranks on emulated hosts: every step costs a delay, and no link carries more than its rate."""

import json
from pathlib import Path

import pytest

from tests import mpi
from tests.conftest import PROGRAM
from tests.waiting import finished, output_of

NETLAB = Path(__file__).with_name("netlab.sh")
RATE_MBIT = 200
STEPS = {"ring": 6, "recursive_doubling": 2}
"""The steps of an allreduce on four ranks, one after another."""


@mpi.NEEDED
@pytest.mark.parametrize("delay_us", [0, 2000])
def test_ranks_on_emulated_hosts(tmp_path: Path, delay_us: int) -> None:
    check = finished([NETLAB, "check"])
    if check.returncode:
        pytest.skip(check.stderr.strip())
    if mpi.LAUNCHER != "mpirun":
        pytest.skip("the lab starts ranks on its hosts by Open MPI's settings")
    if delay_us and not Path("/dev/net/tun").exists():
        pytest.skip("/dev/net/tun expected (for a delay), found none")
    bench = f"bench allreduce --ranks 4 --sizes 4k,1M --passes 1 --json system.results={tmp_path}"
    algorithms = ("--algorithms", ",".join(STEPS))
    hosts = ("run", "4", str(RATE_MBIT), str(delay_us), "--")
    printed = output_of(
        [NETLAB, *hosts, PROGRAM, *bench.split(), *algorithms], timeout=300
    )
    rows = {}
    for row in json.loads(printed)["rows"]:
        rows[row["algorithm"], row["bytes"]] = row
    # What the lab is for: every step costs a delay, and no link carries more than its rate.
    for algorithm, steps in STEPS.items():
        assert rows[algorithm, 4000]["ms"]["min"] > steps * delay_us / 1e3
    # a burst of tbf's is free
    assert rows["ring", 1_000_000]["bus_mb_per_s"] < RATE_MBIT / 8 * 1.6
    namespaces = finished(["ip", "netns", "list"])
    assert "rn50-h" not in namespaces.stdout
