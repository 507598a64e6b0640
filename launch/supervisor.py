"""A launcher's process while it runs: watched, stopped in order, and gone when this returns."""

from __future__ import annotations

import ctypes
import math
import os
import re
import signal
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

import psutil

from ..config.schema import Run
from ..host.atomic import partial_beside
from ..host.errors import RankFailed, UserError
from ..host.lock import other_holder
from ..host.programs import PIPE, start
from ..host.progress import say_aside
from ..host.stop_signals import StopSignals
from ..logging.records import Failure, write
from ..logging.run_folder import RunFolder
from ..train.heartbeat import SCRATCH_ENV
from ..train.reserve import give_back
from .failure import LABEL, Evidence, explain_failure, file_with_details
from .host_limits import check_open_files, read_limits
from .launchers import LAUNCHERS, Job
from .watchdog import Watchdog, oom_kills

if TYPE_CHECKING:
    from subprocess import Popen

GRACE_S = 10.0
"""Time between asking processes to stop and killing them."""
FAILED_GRACE_S = 2.0
"""The same once a rank has failed: the rest can only wait for it."""
POLL_S = 0.05
EXIT_RANK_LOST = 1
_LONGEST_LINE = 1 << 16
_PR_SET_CHILD_SUBREAPER = 36
MOST_BYTES_A_RANK = 10_000_000
_MOST_BYTES = 100_000_000
"""The most for all ranks together; half of it may be in memory."""
_MOST_REPEATS = 100
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")
_MOST_COUNTED = 10_000
"""Different lines whose repeats are counted; messages that flood are among the first."""
_SCRATCH = "rn50"
"""A short name: engines make files below, and the path of a socket has 107 characters at most."""
_HYDRAS_ROW = re.compile(r"={70,}\n")


def run_job(job: Job, launcher: str, out: Path, run: Run | None = None) -> None:
    """Run `job`, show rank 0's output, keep errors in `out`/stderr.log, leave no process behind.
    `run`: whose ranks are watched (train/heartbeat.py); None: nobody is, as in benchmarks.

    Raises RankFailed: which rank, where, why, in one line; UserError: the folder is gone, or this
    shell's limits are too low for a launcher;
    KeyboardInterrupt: the user or the scheduler asked to stop, and everything has been stopped.
    """
    one_machine = job.nodes == 1 and not LAUNCHERS[launcher].may_start_elsewhere
    settings = run.watchdog if run and run.watchdog.enabled else None
    check_open_files(read_limits(), job.ranks if settings else 0)
    watchdog = None
    grace_s = run.limits.grace_s if run else 0.0
    if settings:
        watchdog = Watchdog(
            settings,
            job.ranks,
            one_machine=one_machine,
            # ranks fill one host after the other
            hosts=[host for host in job.hosts for _ in range(job.ranks_per_node)],
        )
    folder = RunFolder(out)
    with _scratch(watchdog, one_machine=one_machine) as added:
        job = job._replace(environment={**job.environment, **added})
        tokens = LAUNCHERS[launcher].command(job)
        try:
            run_watched(
                tokens, job.launchers_environment, out, job.ranks, watchdog, grace_s
            )
        finally:
            if one_machine and other_holder(folder.lock) is None:
                # of a rank 0 that was killed; its folder takes no change
                with suppress(OSError):
                    folder.rank_lock.unlink(missing_ok=True)


def run_watched(
    tokens: Sequence[str],
    environment: Mapping[str, str],
    out: Path,
    ranks: int,
    watchdog: Watchdog | None,
    stop_grace_s: float,
) -> None:
    """Run a launcher's command line under `watchdog`; otherwise as `run_job`."""
    kills = oom_kills()
    folder = RunFolder(out)
    log = StderrLog(folder.stderr, ranks)
    with StopSignals() as stop, _orphans_become_children():
        child = start(tokens, environment, output=PIPE, errors=PIPE)
        with _relayed(child, log):
            code = _run_to_its_end(child, watchdog, stop, stop_grace_s)
    # Hydra finds nothing wrong with a rank that exits with 0 without MPI_Finalize.
    is_lost = watchdog and watchdog.lost
    if code == 0 and is_lost and not folder.result.is_file():
        code = EXIT_RANK_LOST
    if code != 0:
        evidence = Evidence(
            folder.read_failures(),
            log.text,
            code,
            out_of_memory=oom_kills() > kills,
            limits=read_limits(),
            watched=watchdog is not None,
        )
        raise _explain(out, watchdog, evidence)


@contextmanager
def _relayed(child: Popen[str], log: StderrLog) -> Iterator[None]:
    """Show and keep what a launcher prints, until the block has ended the launcher."""
    readers = []
    for target, stream in ((_relay, child.stdout), (_keep, child.stderr)):
        reader = threading.Thread(target=target, args=(stream, log), daemon=True)
        readers.append(reader)
        reader.start()
    try:
        yield
    finally:
        for reader in readers:
            reader.join(timeout=GRACE_S)
        log.finish()


def _run_to_its_end(
    child: Popen[str], watchdog: Watchdog | None, stop: StopSignals, stop_grace_s: float
) -> int:
    """The launcher's exit code, once none of its processes is left. Raises KeyboardInterrupt: asked
    to stop."""
    grace_s = GRACE_S
    try:
        code = wait_for_launcher(child, watchdog, stop)
        if code != 0:
            grace_s = FAILED_GRACE_S
            if watchdog and watchdog.may_save:
                watchdog.request_stop("the watchdog")
                _wait_for_end(child, stop, stop_grace_s)
        return code
    except KeyboardInterrupt:
        if watchdog:
            _let_save(child, watchdog, stop, stop_grace_s)
        raise
    finally:
        stop_descendants(grace_s)
        child.wait()


def _let_save(
    child: Popen[str], watchdog: Watchdog, stop: StopSignals, stop_grace_s: float
) -> None:
    """Ask the ranks to end in order, with a checkpoint, and wait for that as long as is allowed."""
    watchdog.request_stop(stop.name)
    orderly_s = max(stop_grace_s, watchdog.grace_s)
    with suppress(OSError):  # such as a closed terminal
        line = f"rn50: stopping, with a checkpoint within {math.ceil(orderly_s)} s; "
        say_aside(f"{line}Ctrl-C again ends it without")
    _wait_for_end(child, stop, orderly_s)


def _wait_for_end(child: Popen[str], stop: StopSignals, grace_s: float) -> None:
    """Wait until the launcher ends, at most for a while."""
    until_s = time.monotonic() + grace_s
    while child.poll() is None and time.monotonic() < until_s and not stop.forced:
        time.sleep(POLL_S)


@contextmanager
def _orphans_become_children() -> Iterator[None]:
    """Let `stop_descendants` find ranks whose own launcher has ended; no longer than that."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _explain(out: Path, watchdog: Watchdog | None, evidence: Evidence) -> UserError:
    """Why the job failed; what the watchdog knows is left in `out` for whoever reads it later."""
    unwritten: list[Failure] = []
    if watchdog:
        lost = watchdog.failed_rank or watchdog.lost
        unwritten = [*watchdog.failures, *filter(None, [lost])]
        evidence = evidence._replace(
            failures=[*watchdog.failures, *evidence.failures],
            lost=lost,
            not_connected=watchdog.not_connected,
            signals=watchdog.signals,
        )
    why = explain_failure(evidence)
    if not out.is_dir():
        return UserError(
            f"{out}: the run's folder is gone, removed or renamed while the run was in "
            f"progress: {why}"
        )
    give_back(out)
    for failure in unwritten:  # by ranks that could not
        path = out / failure.file_name
        with suppress(OSError):
            if not os.path.lexists(path) or not path.lstat().st_size:
                write(path, failure)
    return RankFailed(why, out / file_with_details(evidence))


class StderrLog:
    """What launcher and ranks write to their standard error, bounded in size: one message of Open
    MPI, repeated without end, once wrote 100 MB in 90 s onto a shared disk. The first half is
    written as it comes, the last half at the end; a line that has come 100 times, whatever numbers
    are in it, is only counted from then on."""

    def __init__(self, path: Path, ranks: int) -> None:
        self._file = path.open("w+b", buffering=0)
        self._half_bytes = min(MOST_BYTES_A_RANK * ranks, _MOST_BYTES) // 2
        self._lock = threading.Lock()
        self._seen: Counter[str] = Counter()
        self._repeated: dict[str, str] = {}
        self._written_bytes = 0
        self._kept_bytes = 0
        self._dropped = 0
        self._last: deque[str] = deque()

    def write(self, line: str) -> None:
        """Keep a line, or count it. May be called by several threads."""
        # our own lines say something else where a number differs
        kind = line if "rn50: " in line else _NUMBER.sub("N", line)
        with self._lock:
            if kind in self._seen or len(self._seen) < _MOST_COUNTED:
                self._seen[kind] += 1
                if self._seen[kind] > _MOST_REPEATS:
                    self._repeated[kind] = line
                    return
            if not self._last and self._written_bytes + len(line) <= self._half_bytes:
                self._written_bytes += len(line)
                self._write(line)
                return
            self._last.append(line)
            self._kept_bytes += len(line)
            while self._kept_bytes > self._half_bytes:
                self._kept_bytes -= len(self._last.popleft())
                self._dropped += 1

    def finish(self) -> None:
        """Write the last lines and how many were left out; then `text` is all of it, read through
        the open file, as somebody may have removed the folder meanwhile."""
        with self._lock, self._file:
            if self._dropped:
                self._write(f"[... {self._dropped:,} lines left out ...]\n")
            for line in self._last:
                self._write(line)
            for kind, line in self._repeated.items():
                repeats = self._seen[kind] - _MOST_REPEATS
                self._write(f"[{repeats:,} more lines like this one: ] {line}")
            self._file.seek(0)
            self.text = self._file.read().decode(errors="replace")

    def _write(self, line: str) -> None:
        # a full disk, the end: a full pipe holds up the ranks
        with suppress(OSError, ValueError):
            self._file.write(line.encode(errors="replace"))


def wait_for_launcher(
    child: Popen[str], watchdog: Watchdog | None, stop: StopSignals
) -> int:
    """The exit code of the launcher; not 0 as soon as the watchdog has found a failed rank, and
    that of SIGSTOP where it stands still itself.

    Raises KeyboardInterrupt once asked to stop, unless all has ended well by then.
    """
    code = None
    while code is None and not stop.name:
        if watchdog and watchdog.failed_rank:
            if psutil.Process(child.pid).status() == psutil.STATUS_STOPPED:
                return -signal.SIGSTOP
            return EXIT_RANK_LOST
        time.sleep(POLL_S)
        code = child.poll()
    if code is None or (stop.name and code != 0):
        raise KeyboardInterrupt(stop.name)
    return code


@contextmanager
def _scratch(
    watchdog: Watchdog | None, *, one_machine: bool
) -> Iterator[dict[str, str]]:
    """Variables for the ranks of one job: their watchdog, and a place for the engines' files. On
    one machine that is a folder of their own, in memory where Open MPI wants shared memory, which
    is removed with whatever a killed rank has left there; those of launchers that were killed with
    all that they had started, up to 8 MB of shared memory each, are removed first."""
    added = watchdog.environment if watchdog else {}
    memory = "/dev/shm"
    parent = memory if os.access(memory, os.W_OK) else tempfile.gettempdir()
    try:
        if not one_machine:
            yield added
            return
        with partial_beside(Path(parent) / _SCRATCH, is_folder=True) as folder:
            folder.chmod(0o700)  # others may enter /dev/shm
            # Open MPI 4 has a folder of its own for what ranks share
            variables = ("TMPDIR", "OMPI_MCA_btl_vader_backing_directory", SCRATCH_ENV)
            yield {**added, **dict.fromkeys(variables, str(folder))}
    finally:
        if watchdog:
            watchdog.close()


def stop_descendants(grace_s: float = GRACE_S) -> None:
    """Ask every process below this one to stop, then kill what is left."""
    alive = psutil.Process().children(recursive=True)
    for process in alive:
        # one that is stopped gets SIGTERM only when it goes on
        _signal(process, signal.SIGTERM, signal.SIGCONT)
    _, alive = psutil.wait_procs(alive, timeout=grace_s)
    for process in alive:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs(alive, timeout=GRACE_S)


def _signal(process: psutil.Process, *numbers: int) -> None:
    with suppress(psutil.NoSuchProcess):
        for number in numbers:
            process.send_signal(number)


def _keep(stderr: IO[str], log: StderrLog) -> None:
    for line in iter(lambda: stderr.readline(_LONGEST_LINE), ""):
        log.write(line)


def _relay(stdout: IO[str], log: StderrLog) -> None:
    """Show what rank 0 prints; Hydra's message on the end of a rank, below a row of its own on the
    standard output, goes to the log, as the launchers' other messages do."""
    is_read = True
    ended = False
    for line in stdout:
        ended = ended or _HYDRAS_ROW.fullmatch(line) is not None
        if ended:
            log.write(line)
        elif is_read:
            try:
                print(LABEL.sub("", line), end="", flush=True)
            except OSError:  # `| head`, a closed terminal: the ranks go on all the same
                is_read = False
