from __future__ import annotations

import pytest

from rn50.launch.failure import PROCESS_EXITED, explain_failure

OWN = {"rank": 1, "host": "h", "phase": "epoch 2", "step": 7, "reason": "UserError: bad record"}
ECHO = OWN | {"rank": 0, "reason": "MXNetError: Horovod has been shut down. This was caused by"}
RESET = ECHO | {"reason": "MXNetError: Connection reset by peer"}
SIGKILL_2 = "rank 2 was killed by SIGKILL"
MPIRUN = "mpirun noticed that process rank 3 with PID 0 on node vm exited on signal 9 (Killed)."
SRUN = "srun: error: node2: task 1: Killed\nsrun: error: node1: task 0: Exited with exit code 143"
GLOO = "status, thus causing the job to be terminated:\nProcess name: 2\nExit code: 137\n"


@pytest.mark.parametrize(
    ("failures", "stderr", "expected"),
    [
        ([ECHO, OWN], MPIRUN, "rank 1 on h failed in epoch 2 at step 7: UserError: bad record"),
        ([ECHO], MPIRUN, "rank 3 was killed by SIGKILL"),
        ([ECHO], GLOO, "rank 2 was killed by SIGKILL"),
        ([ECHO], "[2]<stderr>:Killed\n" + GLOO.replace("2", "0").replace("137", "3"), SIGKILL_2),
        ([ECHO], SRUN, "rank 1 was killed by SIGKILL"),
        ([RESET], GLOO, "rank 2 was killed by SIGKILL"),
        ([], GLOO.replace("137", "139"), "rank 2 was killed by SIGSEGV"),
        ([ECHO], SRUN.replace("Killed", "Bus error"), "rank 1 was killed by SIGBUS: a file in use"),
        ([ECHO], "", "rank 0 on h failed in epoch 2 at step 7: MXNetError: Horovod has been"),
        ([], "a\n\nno slots\n", "ended with exit code 9 before any rank reported: no slots"),
    ],
)
def test_the_cause_comes_first(
    failures: list[dict[str, object]], stderr: str, expected: str
) -> None:
    assert expected in explain_failure(failures, stderr, 9)


def test_a_rank_killed_before_it_reached_the_watchdog_is_the_one_named() -> None:
    gone = OWN | {"rank": 1, "reason": PROCESS_EXITED}  # what mpirun did about it
    told = explain_failure([], MPIRUN, 137, lost=gone, not_connected={3})
    assert told == "rank 3 was killed by SIGKILL"
    assert "rank 1 on h" in explain_failure([], MPIRUN, 137, lost=gone)
    gloo = "[1]<stderr>:terminate called\n[1]<stderr>:Aborted\n[0]<stderr>:Killed\n"
    told = explain_failure([], gloo, 137, lost=gone, not_connected={0})
    assert told == "rank 0 was killed by SIGKILL"


ABORTED = "mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 6 (Aborted)."
CRASH = "terminate called without an active exception\n"


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("", "killed by SIGABRT (terminate called without an active exception)"),
        ("  Error:       Cannot allocate memory (errno 12)\n", "short: Cannot allocate memory)"),
        ("x.so: failed to map segment from shared object\n", "short: failed to map segment from"),
    ],
)
def test_an_abort_for_want_of_memory_says_so(before: str, expected: str) -> None:
    gone = OWN | {"reason": PROCESS_EXITED}
    told = explain_failure([], before + CRASH + ABORTED, 9, lost=gone)
    assert told.startswith("rank 1 on h failed in epoch 2 at step 7: killed by SIGABRT (")
    assert expected in told
    assert ("memory was short" in told) == bool(before)
    # The launcher's record of it, read later, is explained in the same words.
    assert explain_failure([gone], before + CRASH + ABORTED, 9) == told


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        ("x.so: failed to map segment from shared object\nno pml\n", "memory was short: failed to"),
        ("PMIX ERROR\nIt looks like MPI_INIT failed for some reason;\n", "MPI_INIT failed)"),
    ],
)
def test_a_rank_that_mpi_ended_says_why(stderr: str, words: str) -> None:
    told = explain_failure([OWN | {"reason": PROCESS_EXITED}], stderr, 1)
    assert f"{PROCESS_EXITED} ({words}" in told


HYDRA_SAYS = """
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   {rank}PID 21467 RUNNING AT vm
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
===================================================================================
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
"""
PRTERUN_SAYS = """prterun noticed that process rank 1 with PID 18792 on node vm exited on
signal 9 (Killed).
"""


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (HYDRA_SAYS.format(rank="RANK 1 "), "rank 1 was killed by SIGKILL"),
        (HYDRA_SAYS.format(rank=""), "a rank was killed by SIGKILL"),
        (PRTERUN_SAYS, "rank 1 was killed by SIGKILL"),
    ],
)
def test_a_killed_rank_in_the_words_of_each_mpi(said: str, reason: str) -> None:
    """MPICH 4.0.2's Hydra, recorded, names a process; newer ones the rank. Open MPI 5.0.7 has a
    line break in its sentence."""
    assert explain_failure([], said, 137) == reason
    lost = {"rank": 1, "host": "h", "phase": "epoch 1", "step": 3, "reason": PROCESS_EXITED}
    expected = "rank 1 on h failed in epoch 1 at step 3: killed by SIGKILL"
    assert explain_failure([], said, 137, lost=lost) == expected


def test_a_block_of_hydras_for_each_of_many_ranks(alarm: None) -> None:
    """Without the line that ends them: each block was searched to the end of the text, 2,048 in
    0.4 s, as many as here in minutes."""
    block = "=   RANK {0} PID 5 RUNNING AT h\n=   KILLED BY SIGNAL: 15 (Terminated)\n"
    stderr = "".join(block.format(rank) for rank in range(60_000))
    lost = {"rank": 7, "host": "h", "phase": "x", "step": 1, "reason": PROCESS_EXITED}
    assert explain_failure([], stderr, 1, lost=lost).endswith(PROCESS_EXITED)
    stderr += "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)"
    assert "killed by SIGKILL" in explain_failure([], stderr, 9, lost={**lost, "rank": 0})
