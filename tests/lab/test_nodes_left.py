"""A host is cut off for good: mpirun goes on with the others, on emulated hosts."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rn50.train import checkpoint_folder
from tests import mpi
from tests.faults.matrix import ROOT
from tests.lab.test_netlab import NETLAB, why_no_netlab
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, mpi.NEEDED]


def test_the_hosts_that_are_left_go_on(
    rn50: Any, smoke_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := why_no_netlab():
        pytest.skip(reason)
    if mpi.LAUNCHER != "mpirun":
        pytest.skip("the lab starts ranks on its hosts by Open MPI's settings")
    (tmp_path / "hosts").write_text("h1\nh2\nh3\n")
    monkeypatch.setenv("RN50_HOSTS", str(tmp_path / "hosts"))
    launch = [
        *("launch", "smoke", "--launcher", "mpirun", "system.job.max_restarts=2", "seed=1"),
        *("system.nodes=3", "system.ranks_per_node=1", "batch.per_rank=20", "division=open"),
        *("eval.target=0.3", "eval.period=4", "eval.offset=3", "log.every=5 steps"),
        *("checkpoint.every=20 steps", "system.job.min_nodes=2"),
        *(f"data.path={smoke_data}", f"system.results={rn50.results}"),
    ]
    process = subprocess.Popen(
        [NETLAB, "run", "3", "0", "0", "--", ROOT / ".venv/bin/rn50", *launch],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    folders = rn50.results / "smoke"
    wait_until(lambda: any(map(checkpoint_folder.listed, folders.glob("*/checkpoint"))))
    subprocess.run(["ip", "-n", "rn50-h3", "link", "set", "e0", "down"], check=True)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    assert re.search(r"^rn50: rank 2 on h3 failed in .* its network is cut", err, re.M)
    assert "2 of 3 nodes answer: going on with h1, h2\n" in out
    result = json.loads((rn50.run_folder() / "result.json").read_text())
    assert (result["status"], result["ranks"]) == ("success", 2)
