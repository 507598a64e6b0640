"""Ranks on this machine or allocation: one command line a launcher, one place that cleans up."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, NamedTuple

import psutil

from ..config.atomic import open_own, write_own
from ..config.errors import UserError
from ..config.schema import Run
from ..train.heartbeat import SCRATCH_ENV
from .disk_reserve import give_back
from .engine_environment import Controller, Environment, backend_of, engine_environment
from .failure import LABEL, explain_failure, read_failures
from .host_limits import check_open_files, read_limits
from .run_files import refuse_planted
from .watchdog import Monitor, oom_kills

GRACE_S = 10.0
"""Time between asking processes to stop and killing them."""
FAILED_GRACE_S = 2.0
"""The same once a rank has failed: the rest can only wait for it."""
POLL_S = 0.05
EXIT_LOST = 1
_PR_SET_CHILD_SUBREAPER = 36


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


LAUNCHERS: dict[str, tuple[Callable[[Job], list[str]], Controller]] = {
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
    """The job that runs `command` on every rank of `run`, and the engines' environment.

    Raises:
        UserError: the engines refuse the config, or this shell's limits are too low for a launcher.
    """
    check_open_files(read_limits())
    controller = LAUNCHERS[launcher][1]
    environment = engine_environment(run, backend_of(run, controller), os.environ, controller)
    ranks = run.system.nodes * run.system.ranks_per_node
    variables = environment.settings | environment.kept  # on all nodes, the user's as well
    return Job(command, ranks, run.system.ranks_per_node, variables), environment


def run_job(job: Job, launcher: str, out: Path, run: Run | None = None) -> None:
    """Run `job`, show rank 0's output, keep errors in `out`/stderr.log, leave no process behind.

    Args:
        run: whose ranks are watched (train/heartbeat.py); None: nobody is, as in benchmarks.

    Raises:
        UserError: a rank failed: which, where, why, in one line.
        KeyboardInterrupt: the user or the scheduler asked to stop; everything has been stopped.
    """
    monitor, one_machine = None, job.ranks <= job.ranks_per_node
    if run is not None and run.watchdog.enabled:
        monitor = Monitor(run.watchdog, job.ranks, one_machine=one_machine)
    with _scratch(monitor, one_machine=one_machine) as added:
        job = job._replace(environment={**job.environment, **added})
        grace_s = run.limits.grace_s if run else 0.0
        run_watched(LAUNCHERS[launcher][0](job), job.environment, out, monitor, grace_s)


def run_watched(
    tokens: Sequence[str],
    environment: Mapping[str, str],
    out: Path,
    monitor: Monitor | None,
    stop_grace_s: float,
) -> None:
    """Run a launcher's command line under the eyes of `monitor`; otherwise as `run_job`."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphaned ranks become our children
    log_path, kills = out / "stderr.log", oom_kills()
    # Read through this handle at the end: somebody may have removed the folder meanwhile.
    descriptor = open_own(log_path, os.O_RDWR | os.O_TRUNC)
    with os.fdopen(descriptor, "w+", errors="replace") as log, Asked() as asked:
        child = subprocess.Popen(
            tokens,
            env=os.environ | dict(environment),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches us alone; we pass it on
        )
        assert child.stdout is not None
        relay = threading.Thread(target=_relay, args=(child.stdout,), daemon=True)
        relay.start()
        grace_s = GRACE_S
        try:
            code = _wait(child, monitor, asked)
            if code != 0:
                grace_s = FAILED_GRACE_S
        except KeyboardInterrupt:
            if monitor is not None:
                monitor.request_stop()
                _wait_for_end(child, asked, stop_grace_s)
            raise
        finally:
            stop_descendants(grace_s)
            child.wait()
            relay.join(timeout=GRACE_S)
        log.seek(0)
        said = log.read() if code != 0 else ""
    if code != 0:
        why = explain_failure(
            [*(monitor.failures if monitor else []), *read_failures(out)],
            said,
            code,
            lost=(monitor.verdict or monitor.lost) if monitor else None,
            unheard=monitor.unheard if monitor else frozenset(),
            out_of_memory=oom_kills() > kills,
            limits=read_limits(),
        )
        if not out.is_dir():
            raise UserError(
                f"{out}: the run's folder is gone, removed or renamed while the run was in "
                f"progress: {why}"
            )
        if monitor is not None:
            give_back(out)
            _write_failures(monitor, out)
        raise UserError(f"{why}; details: {log_path}")


def _write_failures(monitor: Monitor, out: Path) -> None:
    """What ranks could not write themselves, for whoever reads the folder later."""
    lost = monitor.verdict or monitor.lost
    for failure in [*monitor.failures, *([lost] if lost else [])]:
        path = out / f"failure_{failure['rank']}.json"
        with suppress(OSError):
            if not os.path.lexists(path) or not path.lstat().st_size:
                write_own(path, json.dumps(failure) + "\n")


class Asked:
    """SIGINT and SIGTERM as facts to look at, within the context.

    A handler that raises does so anywhere: within `Popen.poll` it left a lock held, and the wait
    for that process never ended (one in twenty `scancel`s on a busy machine).
    """

    def __init__(self) -> None:
        self.name = ""
        """Of the first signal."""
        self.urgently = False
        """Ctrl-C a second time. SIGTERM comes twice where a scheduler and its script both send."""

    def __enter__(self) -> Asked:
        numbers = (signal.SIGINT, signal.SIGTERM)
        self._previous = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.urgently = self.urgently or (bool(self.name) and number == signal.SIGINT)
        self.name = self.name or signal.Signals(number).name


def _wait(child: subprocess.Popen[str], monitor: Monitor | None, asked: Asked) -> int:
    """The exit code of the launcher; not 0 as soon as the watchdog has found a rank lost.

    Raises KeyboardInterrupt once asked to stop, unless all has ended well by then.
    """
    code = None
    while code is None and not asked.name:
        if monitor is not None and monitor.verdict is not None:
            return EXIT_LOST
        time.sleep(POLL_S)
        code = child.poll()
    if code is None or (asked.name and code != 0):
        raise KeyboardInterrupt(asked.name)
    return code


def _wait_for_end(child: subprocess.Popen[str], asked: Asked, grace_s: float) -> None:
    """Until the launcher ends, at most for a while."""
    until_s = time.monotonic() + grace_s
    while child.poll() is None and time.monotonic() < until_s and not asked.urgently:
        time.sleep(POLL_S)


@contextmanager
def _scratch(monitor: Monitor | None, *, one_machine: bool) -> Iterator[dict[str, str]]:
    """Variables for the ranks of one job: their watchdog, and a place for the engines' files.

    On one machine that is a folder of their own, in memory where Open MPI wants shared memory,
    which is removed with whatever a killed rank has left there.
    """
    added = monitor.environment if monitor else {}
    shared = Path("/dev/shm")
    parent = str(shared) if shared.is_dir() else None
    try:
        if not one_machine:
            yield added
            return
        with tempfile.TemporaryDirectory(
            prefix="rn50-", dir=parent, ignore_cleanup_errors=True
        ) as folder:
            places = ("TMPDIR", "OMPI_MCA_btl_vader_backing_directory", SCRATCH_ENV)
            yield {**added, **dict.fromkeys(places, folder)}
    finally:
        if monitor is not None:
            monitor.close()


def stop_descendants(grace_s: float = GRACE_S) -> None:
    """Ask every process below this one to stop, then kill what is left."""
    alive = psutil.Process().children(recursive=True)
    for process in alive:
        _signal(process, signal.SIGTERM)
        _signal(process, signal.SIGCONT)
    _, alive = psutil.wait_procs(alive, timeout=grace_s)
    # horovodrun's semaphores are removed by a process that outlives it for just that.
    trackers = [process for process in alive if _is_tracker(process)]
    for process in alive:
        if process not in trackers:
            _signal(process, signal.SIGKILL)
    _, alive = psutil.wait_procs(alive, timeout=grace_s)
    for process in alive:
        _signal(process, signal.SIGKILL)


def _is_tracker(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
    return False


def _signal(process: psutil.Process, number: int) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _relay(stdout: IO[str]) -> None:
    read = True
    for line in stdout:
        if read:
            try:
                print(LABEL.sub("", line), end="", flush=True)
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


def refuse_run(folder: Path) -> None:
    """Raises UserError where a run has left its files in `folder`: another would replace them.

    Likewise where something lies there by which a file elsewhere would be written.
    """
    for name in ("config.yaml", "result_0.txt", "metrics.jsonl", "result.json"):
        if os.path.lexists(folder / name):
            raise UserError(f"--out: {folder}: a folder without a run expected, found its {name}")
    refuse_planted(folder)
