"""The part of the fault matrix that CI runs: a signal, silence and a full disk; `make fault-matrix`
has the rest. A NaN, a closed terminal and a launcher that is killed: test_memory.py,
test_terminal.py. A folder that is removed: tests/launch/test_supervisor.py. A loss that is no
number: tests/launch/test_dry_run.py. A wall clock that jumps: tests/logging/test_clock.py."""

import os
from pathlib import Path

import pytest

from tests import mpi
from tests.faults.matrix import BUSY_BOUND_S, Case, cases, run_case

pytestmark = pytest.mark.slow
FAST = (
    "SIGKILL, mpirun, checkpoint, rank 0",
    "SIGSTOP, mpirun, mid-epoch, rank 0",
    "disk full, mpirun, mid-epoch, rank 0",
)
CHOSEN = [case for case in cases() if case.name in FAST]


def test_the_fast_part_is_in_the_matrix() -> None:
    assert {case.name for case in CHOSEN} == set(FAST)


@pytest.mark.parametrize("case", CHOSEN, ids=lambda case: case.name)
def test_it_ends_in_time_with_the_right_word(case: Case, small_data: Path) -> None:
    if case.launcher == "mpirun":
        if mpi.WHY_NOT:
            pytest.skip(mpi.WHY_NOT)
        case = case._replace(launcher=mpi.LAUNCHER)
    if case.needs_root and os.geteuid() != 0:
        pytest.skip("a small file system needs root")
    assert run_case(case, small_data, BUSY_BOUND_S).problems == []
