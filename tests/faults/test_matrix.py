"""The part of the fault matrix that CI runs: a signal, silence and a full disk; `make fault-matrix`
has the rest. A NaN, a closed terminal and a launcher that is killed: test_memory.py,
test_terminal.py. A folder that is removed: tests/launch/test_supervisor.py. A loss that is no
number: tests/launch/test_dry_run.py. A wall clock that jumps: tests/logging/test_clock.py."""

import os
from pathlib import Path

import pytest

from tests import mpi
from tests.faults.matrix import BUSY_BOUND_S, cases, run_case

pytestmark = [pytest.mark.slow, mpi.NEEDED]
FAST = (
    "SIGKILL, mpirun, checkpoint, rank 0",
    "SIGSTOP, mpirun, mid-epoch, rank 0",
    "disk full, mpirun, mid-epoch, rank 0",
)
CASES = {case.name: case for case in cases()}


@pytest.mark.parametrize("name", FAST)
def test_it_ends_in_time_with_the_right_word(name: str, small_data: Path) -> None:
    case = CASES[name]._replace(launcher=mpi.LAUNCHER)
    if case.needs_root and os.geteuid() != 0:
        pytest.skip("a small file system needs root")
    assert run_case(case, small_data, BUSY_BOUND_S).problems == []
