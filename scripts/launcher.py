"""Ranks on this machine or allocation: one command line a launcher, one place that cleans up."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO, NamedTuple

import psutil

from ..config.errors import UserError
from ..config.schema import Run
from ..train.environment import Backend, Environment, backend_of, engine_environment
from .failure import explain_failure, read_failures

GRACE_S = 10.0
"""Time between asking processes to stop and killing them."""
_PR_SET_CHILD_SUBREAPER = 36
_PREFIX = re.compile(r"^\[\d+\]<std(out|err)>:")


class Job(NamedTuple):
    """What to start: `command` once for each rank, with `environment` on every node."""

    command: Sequence[str]
    ranks: int
    ranks_per_node: int
    environment: Mapping[str, str]


def mpirun_command(job: Job) -> list[str]:
    """Open MPI's launcher; takes its hosts from the scheduler's allocation."""
    tokens = ["mpirun", "-np", str(job.ranks), "--oversubscribe", "--bind-to", "none"]
    if job.ranks > job.ranks_per_node:
        tokens += ["--map-by", f"ppr:{job.ranks_per_node}:node"]
    if os.geteuid() == 0:
        tokens.append("--allow-run-as-root")
    for name in sorted(job.environment):
        tokens += ["-x", name]
    return [*tokens, *job.command]


def gloo_command(job: Job) -> list[str]:
    """Horovod's own launcher with its Gloo controller: needs no MPI."""
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    return [horovodrun, "--gloo", "-np", str(job.ranks), *job.command]


def srun_command(job: Job) -> list[str]:
    """Slurm's launcher, within an allocation; ranks find each other by PMIx.

    Without --kill-on-bad-exit the others would wait for a rank that failed, for ever.
    """
    nodes = -(-job.ranks // job.ranks_per_node)
    return [
        *("srun", "--mpi=pmix", "--kill-on-bad-exit=1", f"--nodes={nodes}"),
        *(f"--ntasks={job.ranks}", f"--ntasks-per-node={job.ranks_per_node}"),
        *("--cpu-bind=none", "--export=ALL", *job.command),
    ]


LAUNCHERS: dict[str, tuple[Callable[[Job], list[str]], Backend]] = {
    "mpirun": (mpirun_command, "mpi"),
    "gloo": (gloo_command, "gloo"),
    "srun": (srun_command, "mpi"),
}


def pick_launcher(wanted: str | None) -> str:
    """The launcher asked for; else srun in a Slurm allocation, else mpirun if any, else gloo."""
    if wanted is not None and wanted not in LAUNCHERS:
        raise UserError(f"--launcher: {', '.join(LAUNCHERS)} expected, found {wanted}")
    if wanted == "mpirun" and shutil.which("mpirun") is None:
        raise UserError("--launcher mpirun: Open MPI's mpirun on the PATH expected, found none")
    if wanted == "srun" and shutil.which("srun") is None:
        raise UserError("--launcher srun: Slurm's srun on the PATH expected, found none")
    if wanted is None and "SLURM_JOB_ID" in os.environ and shutil.which("srun"):
        return "srun"
    return wanted or ("mpirun" if shutil.which("mpirun") else "gloo")


def build_job(run: Run, launcher: str, command: Sequence[str]) -> tuple[Job, Environment]:
    """The job that runs `command` on every rank of `run`, and the engines' environment."""
    backend = backend_of(run, LAUNCHERS[launcher][1])
    environment = engine_environment(run, backend, os.environ)
    ranks = run.system.nodes * run.system.ranks_per_node
    variables = environment.settings | environment.kept  # on all nodes, the user's as well
    return Job(command, ranks, run.system.ranks_per_node, variables), environment


def run_job(job: Job, launcher: str, out: Path) -> None:
    """Run `job`, show rank 0's output, keep errors in `out`/stderr.log, leave no process behind.

    Raises:
        UserError: a rank failed: which, where, why, in one line.
        KeyboardInterrupt: the user or the scheduler asked to stop; everything has been stopped.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphaned ranks become our children
    tokens = LAUNCHERS[launcher][0](job)
    log_path = out / "stderr.log"
    with log_path.open("w") as log:
        child = subprocess.Popen(
            tokens,
            env=os.environ | dict(job.environment),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches us alone; we pass it on
        )
        assert child.stdout is not None
        relay = threading.Thread(target=_relay, args=(child.stdout,), daemon=True)
        relay.start()
        previous = {
            number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            code = child.wait()
        finally:
            for number in previous:
                signal.signal(number, signal.SIG_IGN)
            stop_descendants()
            child.wait()
            relay.join(timeout=GRACE_S)
            for number, handler in previous.items():
                signal.signal(number, handler)
    if code != 0:
        why = explain_failure(read_failures(out), log_path.read_text(errors="replace"), code)
        raise UserError(f"{why}; details: {log_path}")


def stop_descendants(grace_s: float = GRACE_S) -> None:
    """Ask every process below this one to stop, then kill what is left."""
    alive = psutil.Process().children(recursive=True)
    for process in alive:
        _signal(process, signal.SIGTERM)
        _signal(process, signal.SIGCONT)
    _, alive = psutil.wait_procs(alive, timeout=grace_s)
    for process in alive:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs(alive, timeout=grace_s)


def _signal(process: psutil.Process, number: int) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _interrupt(number: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def _relay(stdout: IO[str]) -> None:
    read = True
    for line in stdout:
        if read:
            try:
                print(_PREFIX.sub("", line), end="", flush=True)
            except BrokenPipeError:  # `| head`: the ranks go on all the same
                read = False


def new_run_folder(run: Run) -> Path:
    """`results/<name>/<UTC time>/`, created. Raises UserError where it cannot be."""
    parent = Path(run.system.results) / run.name
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for suffix in ("", *(f"-{n}" for n in range(2, 100))):
        folder = parent / f"{stamp}{suffix}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"{folder}: cannot create: {error.strerror}") from None
        return folder
    raise UserError(f"{parent}: cannot create a new folder for this run")
