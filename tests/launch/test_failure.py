"""Why a job failed, out of what launchers and ranks printed; what was short on the machine."""

import errno
import os
import re
import resource
import sys
from dataclasses import replace
from pathlib import Path
from signal import SIGABRT, SIGBUS, SIGKILL, SIGXCPU
from typing import Any

import pytest

from rn50.config.load import load
from rn50.host.errors import UserError
from rn50.launch.failure import PROCESS_EXITED, Evidence, explain_failure
from rn50.launch.host_limits import (
    LEAST_OPEN_FILES,
    Cause,
    Limits,
    check_open_files,
    read_limits,
    with_shortages,
)
from rn50.launch.launch_plan import Options, plan_launch
from rn50.logging.records import Failure
from rn50.train.__main__ import Rank
from tests.conftest import refused

EAGAIN = os.strerror(errno.EAGAIN)
RECORDED = Path(__file__).resolve().parent.parent / "golden" / "refusals"
OWN = Failure(1, "h", "epoch 2", 7, "UserError: bad record")
GONE = replace(OWN, reason=PROCESS_EXITED)
GONE_MUTE = Cause(PROCESS_EXITED, is_mute=True)
ECHO = replace(
    OWN, rank=0, reason="MXNetError: Horovod has been shut down. This was caused by"
)
RESET = replace(ECHO, reason="MXNetError: Connection reset by peer")
SIGKILL_2 = "rank 2 was killed by SIGKILL"
MPIRUN = "mpirun noticed that process rank 3 with PID 0 on node vm exited on signal 9 (Killed)."
SRUN = "srun: error: node2: task 1: Killed\nsrun: error: node1: task 0: Exited with exit code 143"
GLOO = (
    "status, thus causing the job to be terminated:\nProcess name: 2\nExit code: 137\n"
)
ABORTED = MPIRUN.replace("rank 3", "rank 1").replace("9 (Killed)", "6 (Aborted)")
CRASH = "terminate called without an active exception\n"
HYDRA = """
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   {rank}PID 21467 RUNNING AT vm
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
===================================================================================
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
"""
PRTERUN = (
    "prterun noticed that process rank 1 with PID 18792 on node vm exited on\n"
    "signal 9 (Killed)"
)
# Open MPI 4.1.4 with OMPI_MCA_pml=ucx; a rank on h2 that cannot reach h3.
NO_PML = "-----\nNo components were able to be opened in the pml framework.\n\nThis typically means"
NO_PEER = (
    "[[4352,1],1][btl_tcp_endpoint.c:626:mca_btl_tcp_endpoint_recv_connect_ack] from h2 "
    "to: h3 Unable to connect to the peer 10.79.0.3 on port 1024: No route to host\n"
)
TIMED_OUT = replace(OWN, reason="MXNetError: Connection timed out")
GLOO_LOOP = (
    "[1]<stderr>:[2026-11-26 01:12:37.9: E /b/operations.cc:697] [1]: Horovod background loop "
    "uncaught exception: [/b/tcp/pair.cc:589] Read error [10.79.0.2]:5: Connection timed out\n"
)
NO_TASKS = "srun: error: Unable to create step for job 7: More processors requested than permitted"
NO_FOLDER = f"[4]<stderr>:{Failure(4, 'h2', 'start', 0, '/r: a shared folder').line}\n"
HERE = "rank 1 on h failed in epoch 2 at step 7: "
PLENTY = Limits({"n": 1024}, None, 1 << 30, 1 << 30)
NO_PIDS = PLENTY._replace(processes=30)
SMALL_SPACE = PLENTY._replace(ulimits={"v": 900_000})
SMALL_FILES = PLENTY._replace(ulimits={"f": 300})
NO_TIME = PLENTY._replace(ulimits={"t": 4})
FEW_PROCESSES = PLENTY._replace(ulimits={"u": 60})
UCX = PLENTY._replace(variables="OMPI_MCA_pml=ucx")
FULL = PLENTY._replace(shared_free_bytes=32 << 10, shared_bytes=64 << 10)


def seen(stderr: str = "", *failures: Failure, **more: Any) -> Evidence:
    return Evidence(failures, stderr, **{"code": 9, **more})


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (seen(MPIRUN, ECHO, OWN), HERE + "UserError: bad record"),
        (seen(MPIRUN, ECHO), "rank 3 was killed by SIGKILL"),
        (seen(GLOO, ECHO), SIGKILL_2),
        (seen("[2]<stderr>:Killed\n" + GLOO.replace("137", "3"), ECHO), SIGKILL_2),
        (seen(SRUN, ECHO), "rank 1 was killed by SIGKILL"),
        (seen(GLOO, RESET), SIGKILL_2),
        (
            seen(SRUN.replace("Killed", "Bus error"), ECHO),
            "killed by SIGBUS: a file in use",
        ),
        (
            seen(SRUN.replace("Killed", "CPU time limit exceeded"), ECHO),
            "killed by SIGXCPU",
        ),
        (
            seen("", ECHO),
            "rank 0 on h failed in epoch 2 at step 7: MXNetError: Horovod has been",
        ),
        (seen(HYDRA.format(rank="RANK 1 ")), "rank 1 was killed by SIGKILL"),
        (seen(HYDRA.format(rank="")), "a rank was killed by SIGKILL"),
        (seen(HYDRA.format(rank=""), lost=GONE), HERE + "killed by SIGKILL"),
        (seen(PRTERUN, lost=GONE), HERE + "killed by SIGKILL"),
        (seen(PRTERUN, out_of_memory=True), "SIGKILL (the kernel was out of memory)"),
        (seen(MPIRUN, lost=GONE), HERE + PROCESS_EXITED),
        (
            seen(MPIRUN, lost=replace(GONE, reason="silent for 4 s")),
            HERE + "silent for 4 s",
        ),
        # One that had not reached the watchdog took those along that had.
        (
            seen(f"{ABORTED}\n{MPIRUN}", lost=GONE, not_connected={3}),
            "rank 3 was killed by",
        ),
        (
            seen(f"{MPIRUN}\n{ABORTED}", lost=GONE, not_connected={1}),
            "killed by SIGABRT",
        ),
        (
            seen(CRASH + ABORTED, lost=GONE),
            HERE + "killed by SIGABRT (terminate called",
        ),
        (
            seen("x: Cannot allocate memory\n" + CRASH, lost=GONE),
            "memory was short: Cannot allocate",
        ),
        (
            seen("[1]<stderr>:It looks like MPI_INIT failed\n", lost=GONE),
            "gone (MPI_INIT failed",
        ),
        (
            seen("[0]<stderr>:It looks like MPI_INIT failed\n", lost=GONE),
            PROCESS_EXITED,
        ),
        (seen("a\n\nno slots\n"), "exit code 9 before any rank reported: a no slots"),
        (
            seen(NO_PML, lost=GONE),
            "gone (No components were able to be opened in the pml framew",
        ),
        (
            seen(NO_PEER, lost=GONE),
            "gone (from h2 to: h3 Unable to connect to the peer 10.79.0.3",
        ),
        (
            seen(GLOO_LOOP, TIMED_OUT),
            "timed out (uncaught exception: Read error [10.79.0.2]:5: C",
        ),
        # The launcher's own process got SIGTERM, or a rank's end made it send that to the others.
        (
            seen("", ECHO, lost=GONE, signals={1: "SIGTERM"}),
            "process, not a rank, was asked",
        ),
        (seen(signals={1: "SIGTERM"}), "was asked to end: its ranks got SIGTERM"),
        (seen(GLOO, signals=dict.fromkeys((0, 1, 2), "SIGTERM")), "was asked to end"),
        (seen(lost=GONE, signals={0: "SIGTERM"}), HERE + PROCESS_EXITED),
        (seen(lost=GONE, signals={1: "SIGTERM"}, not_connected={2}), PROCESS_EXITED),
        (seen(MPIRUN, ECHO, signals={3: "SIGTERM"}), "rank 3 was killed by SIGKILL"),
        (
            seen("", OWN, code=-19),
            "the launcher's process, not a rank, was stopped by SIGSTOP",
        ),
        # The launcher's own process; a node without the run's folder.
        (
            seen("", OWN, code=-9),
            "the launcher's process, not a rank, was killed by SIGKILL",
        ),
        (
            seen(NO_FOLDER, lost=GONE, not_connected={4}),
            "rank 4 on h2 failed in start at",
        ),
        (seen(NO_FOLDER, lost=GONE), HERE + PROCESS_EXITED),
        (seen(NO_FOLDER, watched=False), "rank 4 on h2 failed in start at"),
    ],
)
def test_the_cause_comes_first(evidence: Evidence, expected: str) -> None:
    reason = explain_failure(evidence)
    assert expected in reason
    assert reason.endswith(PROCESS_EXITED) or not expected.endswith(PROCESS_EXITED)


SAID = {
    "mpirun_slots": "There are not enough slots available in the system to satisfy the 8 slots",
    "mpirun_ppr": "Your job has requested more processes than the ppr for this topology",
    "mpirun_root": "mpirun has detected an attempt to run as root.",
    "mpirun_nohost": "ssh: Could not resolve hostname nohost1: Name or service not known",
    "mpirun_files": "No network interfaces were found for out-of-band communications",
    "mpirun5_noprog": "prterun was unable to launch .* /nowhere/prog",
    "hydra_noprog": r"execvp error on file /nowhere/prog \(No such file or directory\)",
    "srun_nodes": "error: Only allocated 1 nodes asked for 2",
    "srun_noprog": r"error: execve\(\): /nowhere/prog: No such file or directory",
    "horovodrun_nohost": "RuntimeError: could not connect to some hosts via ssh",
    "horovodrun_badopt": "horovodrun: error: unrecognized arguments: --nonsense",
}


@pytest.mark.parametrize("path", sorted(RECORDED.iterdir()), ids=lambda path: path.stem)
def test_a_launcher_that_starts_nothing_is_quoted(path: Path) -> None:
    reason = explain_failure(Evidence([], path.read_text(), 1))
    assert re.search(
        f"exit code 1 before any rank reported: .*{SAID[path.stem]}", reason
    ), reason
    assert len(reason) < 600
    assert "\n" not in reason


@pytest.mark.parametrize(
    ("cause", "stderr", "limits", "short"),
    [
        (
            Cause("[Errno 24] Too many open files"),
            "",
            PLENTY,
            "(open files are limited: ulimit -n 1024)",
        ),
        (
            Cause("x"),
            "y: Too many open files",
            PLENTY,
            "(Too many open files; open files are limited",
        ),
        (
            Cause("MemoryError"),
            "",
            SMALL_SPACE,
            "(address space is limited: ulimit -v 900000)",
        ),
        (GONE_MUTE, "", SMALL_SPACE, "(address space is limited: ulimit -v 900000)"),
        (
            Cause("killed", SIGABRT),
            "",
            NO_PIDS,
            "(processes and threads are limited: pids.max 30)",
        ),
        (Cause("killed", SIGBUS), "", FULL, "(/dev/shm: 32 kB free, 64 kB in all)"),
        (
            GONE_MUTE,
            "PMIX ERROR: OUT-OF-RESOURCE in x",
            FULL,
            "(PMIX ERROR: OUT-OF-RESOURCE;",
        ),
        (
            Cause("[Errno 27] File too large"),
            "",
            SMALL_FILES,
            "(file size is limited: ulimit -f 300)",
        ),
        (GONE_MUTE, "", SMALL_FILES, "(file size is limited: ulimit -f 300)"),
        (Cause("killed", SIGXCPU), "", NO_TIME, "(CPU time is limited: ulimit -t 4)"),
        (Cause("killed", SIGKILL), "", NO_TIME, "(CPU time is limited: ulimit -t 4)"),
        (Cause("killed", SIGABRT), CRASH, FEW_PROCESSES, "ulimit -u 60"),
        (
            Cause(f"{EAGAIN} x"),
            "",
            FEW_PROCESSES,
            "(processes and threads are limited: ulimit -u 60)",
        ),
        (GONE_MUTE, NO_PML, UCX, "pml framework; OMPI_MCA_pml=ucx)"),
        (Cause("x"), NO_TASKS, PLENTY, "or --launcher mpirun)"),
        (Cause("killed", SIGKILL), "", FEW_PROCESSES, ""),
        (GONE_MUTE, "", NO_TIME, ""),
        (GONE_MUTE, "", UCX, ""),
        (Cause("ValueError: x"), "", SMALL_FILES, ""),
        (Cause("killed", SIGBUS), "", PLENTY, ""),
    ],
)
def test_what_was_short_is_named(
    cause: Cause, stderr: str, limits: Limits, short: str
) -> None:
    sentence = str(with_shortages(cause, stderr, limits))
    assert short in sentence if short else sentence == cause.reason


@pytest.mark.parametrize(
    ("evidence", "short"),
    [
        (seen(lost=GONE, limits=SMALL_SPACE), "ulimit -v"),
        (seen(GLOO, limits=NO_TIME), "ulimit -t"),
        (seen(ABORTED, lost=GONE, limits=NO_PIDS), "pids.max"),
        (seen("", OWN, code=-24, limits=NO_TIME), "ulimit -t"),
        (seen(limits=NO_PIDS), "pids.max"),
    ],
)
def test_an_end_without_a_word_is_held_against_the_limits(
    evidence: Evidence, short: str
) -> None:
    assert short in explain_failure(evidence)


def test_limits_are_in_the_units_of_ulimit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_MCA_pml", "ucx")

    def limit(number: int) -> tuple[int, int]:
        return ((number + 1) << 20, 0)

    monkeypatch.setattr(resource, "getrlimit", limit)
    limits = read_limits()
    assert (
        limits.ulimits.items()
        >= {
            "v": (resource.RLIMIT_AS + 1) << 10,
            "f": (resource.RLIMIT_FSIZE + 1) << 10,
            "t": (resource.RLIMIT_CPU + 1) << 20,
        }.items()
    )
    assert "OMPI_MCA_pml=ucx" in limits.variables
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: unlimited)
    assert read_limits().ulimits == {}


def test_too_few_open_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_open_files(PLENTY._replace(ulimits={}))
    check_open_files(PLENTY._replace(ulimits={"n": 4096}), 2048)
    with refused(r"^ulimit -n: at least 64 open files .* found 63"):
        check_open_files(PLENTY._replace(ulimits={"n": LEAST_OPEN_FILES - 1}))
    with refused(r"at least 2080 .* found 1024"):
        check_open_files(PLENTY._replace(ulimits={"n": 1024}), 2048)
    assert read_limits().shared_bytes > 0
    few = PLENTY._replace(ulimits={"n": 20})
    monkeypatch.setattr("rn50.launch.preflight.read_limits", lambda: few)
    plan = plan_launch(load("smoke"), Options("gloo"))
    assert "ulimit -n" in "".join(plan.obstacles)


def test_a_rank_that_never_connected_leaves_its_record_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os._exit", sys.exit)
    with pytest.raises(SystemExit):
        Rank(tmp_path / "on another node").fail(UserError("no connection"))
    seen = Evidence([], capsys.readouterr().err, 1, lost=GONE, not_connected={0})
    assert explain_failure(seen).endswith(" failed in start at step 0: no connection")
