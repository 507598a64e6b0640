"""What launchers said when they did not start the ranks, recorded; what was short on a machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rn50.config.errors import UserError
from rn50.launch.failure import explain_failure
from rn50.launch.host_limits import (
    LEAST_OPEN_FILES,
    Limits,
    check_open_files,
    describe_silent,
    read_limits,
    shortages,
)
from rn50.launch.refusal import quote_refusal
from tests.waiting import wait_until

RECORDED = Path(__file__).resolve().parent.parent / "golden" / "refusals"
SAID = {
    "mpirun_slots": "There are not enough slots available in the system to satisfy the 8 slots "
    "that were requested by the application: hostname Either request fewer slots for your "
    "application, or make more slots available for use.",
    "mpirun_ppr": "Your job has requested more processes than the ppr for this topology can "
    "support: App: hostname Number of procs: 2 PPR: 1:node",
    "mpirun_root": "mpirun has detected an attempt to run as root.",
    "mpirun_noprog": "mpirun was unable to launch the specified application as it could not access "
    "or execute an executable: Executable: /nowhere/prog Node: vm while attempting to start "
    "process rank 0.",
    "mpirun_nohost": "ssh: Could not resolve hostname nohost1: Name or service not known",
    "mpirun_badopt": 'mpirun: Error: unknown option "--nonsense"',
    "mpirun_badhostfile": "Open RTE was unable to open the hostfile: /nowhere/hosts",
    "mpirun_files": "No network interfaces were found for out-of-band communications. We require "
    "at least one available network for out-of-band messaging.",
    "mpirun5_slots": "There are not enough slots available in the system to satisfy the 8 slots "
    "that were requested by the application: hostname Either request fewer procs for your "
    "application, or make more slots available for use.",
    "mpirun5_root": "prterun has detected an attempt to run as root.",
    "mpirun5_noprog": "prterun was unable to launch the specified application as it lacked "
    "permissions to execute an executable: Executable: /nowhere/prog Node: vm while attempting to "
    "start process rank 0.",
    "mpirun5_nohost": "ssh: Could not resolve hostname nohost1: Name or service not known",
    "mpirun5_badhostfile": "PRTE was unable to open the hostfile: /nowhere/hosts",
    "mpirun5_badopt": "An unrecognized option was included on the mpirun command line: Option: "
    "--nonsense",
    "hydra_noprog": "execvp error on file /nowhere/prog (No such file or directory)",
    "hydra_badopt": "unrecognized argument nonsense",
    "hydra_badhosts": "unable to open host file: /nowhere/hosts",
    "srun_nodes": "error: Only allocated 1 nodes asked for 2",
    "srun_noprog": "error: execve(): /nowhere/prog: No such file or directory",
    "srun_mpi": "error: Couldn't find the specified plugin name for mpi/pmix_v9 looking at all "
    "files",
    "srun_tasks": "error: Unable to create step for job 5: More processors requested than "
    "permitted",
    "srun_part": "error: invalid partition specified: nope",
    "srun_noctl": "error: s_p_parse_file: cannot stat file /nowhere: No such file or directory, "
    "retrying in 1sec up to 60sec",
    "horovodrun_nohost": "RuntimeError: could not connect to some hosts via ssh",
    "horovodrun_slots": "ValueError: Requested more processes (4) than there are available slots "
    "(2)",
    "horovodrun_noprog": "rank 1 ended with exit code 127 (no such program)",
    "horovodrun_badopt": "horovodrun: error: unrecognized arguments: --nonsense",
}
CANCELLED = """srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
slurmstepd: error: *** STEP 8.0 ON node1 CANCELLED AT 2026-11-22T10:51:11 DUE TO TIME LIMIT ***
srun: error: node2: task 1: Terminated
"""
PLENTY = Limits(None, 1024, 1 << 30, 1 << 30)


@pytest.mark.parametrize("name", SAID)
def test_a_launcher_is_quoted(name: str) -> None:
    stderr = (RECORDED / f"{name}.txt").read_text()
    assert quote_refusal(stderr) == SAID[name]
    told = explain_failure([], stderr, 1)
    assert told == f"the launcher ended with exit code 1 before any rank reported: {SAID[name]}"


def test_every_recording_is_held_to_its_sentence() -> None:
    assert {path.stem for path in RECORDED.iterdir()} == set(SAID)


@pytest.mark.parametrize(
    ("stderr", "said"),
    [
        ("", ""),
        ("-" * 74 + "\n", ""),
        (CANCELLED, "error: *** STEP 8.0 ON node1 CANCELLED AT 2026-11-22T10:51:11 DUE TO TIME"),
        ("a\n\nno slots\n", "no slots"),
        ("x" * 1000, "x" * 300 + " ..."),
    ],
)
def test_whatever_it_said_is_one_line_of_text(stderr: str, said: str) -> None:
    quoted = quote_refusal(stderr)
    assert quoted.startswith(said) and len(quoted) <= 310 and "\n" not in quoted
    assert bool(quoted) == bool(said)


def test_what_was_short_is_named() -> None:
    few = PLENTY._replace(open_files=80)
    assert shortages("OSError: [Errno 24] Too many open files", "", few) == (
        "open files are limited: ulimit -n 80"
    )
    hidden = shortages("rank 1 on h failed: its process is gone", "x: Too many open files", few)
    assert hidden == "Too many open files; open files are limited: ulimit -n 80"
    small = PLENTY._replace(address_space_bytes=900_000 << 10)
    assert shortages("MemoryError: out of memory", "", small) == (
        "address space is limited: ulimit -v 900000"
    )
    full = PLENTY._replace(shared_free_bytes=32 << 10, shared_bytes=64 << 10)
    pmix = "[vm:1] PMIX ERROR: OUT-OF-RESOURCE in file dstore_segment.c at line 208\n"
    told = explain_failure([], pmix, 1, lost=GONE, limits=full)
    assert told.endswith(
        "its process is gone (PMIX ERROR: OUT-OF-RESOURCE; /dev/shm: 32 kB free, 64 kB in all)"
    )
    killed = "killed by SIGBUS: a file in use, such as a record file, was cut short"
    assert shortages(killed, "", full) == "/dev/shm: 32 kB free, 64 kB in all"


GONE = {"rank": 1, "host": "h", "phase": "start", "step": 0, "reason": "its process is gone"}


@pytest.mark.parametrize(
    "reason",
    ["killed by SIGKILL", "ValueError: x", "killed by SIGBUS: a file in use", "MemoryError"],
)
def test_where_nothing_was_short_nothing_is_said(reason: str) -> None:
    assert shortages(reason, "", PLENTY) == ""
    assert shortages("killed by SIGKILL", "", PLENTY._replace(address_space_bytes=1 << 30)) == ""


def test_too_few_open_files_are_refused() -> None:
    check_open_files(PLENTY)
    check_open_files(PLENTY._replace(open_files=None))
    with pytest.raises(
        UserError, match=r"^ulimit -n: at least 64 open files .* found 63: too many"
    ):
        check_open_files(PLENTY._replace(open_files=LEAST_OPEN_FILES - 1))
    check_open_files(PLENTY._replace(open_files=4096), 2048)
    with pytest.raises(UserError, match=r"at least 2080 .* found 1024: .* \(2048 connections"):
        check_open_files(PLENTY._replace(open_files=1024), 2048)
    assert read_limits().shared_bytes > 0


def test_a_silent_process_of_this_machine_is_looked_at() -> None:
    body = "import time, resource; b = bytearray(640 << 20); print(1, flush=True); time.sleep(600)"
    command = ["bash", "-c", 'ulimit -v 700000; exec "$0" -c "$1"', sys.executable, body]
    process = subprocess.Popen(
        command, env=os.environ | {"RN50_WATCHDOG": "h:1:secret"}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout and process.stdout.readline() == "1\n"
        told = describe_silent(process.pid, "secret")
        assert told == (
            "its process is there and does not answer (it has taken all its address space: "
            "ulimit -v 700000)"
        )
        process.send_signal(19)
        stopped = "its process is stopped"
        assert wait_until(lambda: re.match(stopped, describe_silent(process.pid, "secret") or ""))
        assert describe_silent(process.pid, "another") is None
    finally:
        process.kill()
        process.wait()
    assert describe_silent(process.pid, "secret") is None
