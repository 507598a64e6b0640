"""One rank: `python -m rn50.train CONFIG --out FOLDER [key=value ...]`, what launchers start."""

from __future__ import annotations

import argparse
import faulthandler
import os
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from ..config.load import load
from ..config.schema import Run
from ..host.errors import UserError
from ..host.exit_codes import EXIT_FAILED, EXIT_USAGE
from ..host.lock import FolderInUse, hold
from ..host.stop_signals import STOP_SIGNALS
from ..logging.records import Failure, to_dict, write
from ..logging.run_folder import RunFolder
from .capabilities import check_supported
from .checkpoint.file import read_checkpoint
from .checkpoint.resume import check_config
from .context import RunContext
from .heartbeat import SCRATCH_ENV, WATCHDOG_ENV, HeartbeatClient
from .mxnet_import import load_library
from .mxnet_package import library
from .process_info import ProcessInfo, read_process_info
from .seeding import draw_seed
from .stopping import AllRanksError, Cause

_SIGNALS = (signal.SIGINT, *STOP_SIGNALS)
_FRAMES = ("Traceback", "Stack trace", "Stacktrace", "File ", "[frame", "[bt]")


def main(arguments: list[str] | None = None) -> None:
    """Train one rank; on any error leave `failure_<rank>.json` and end the process at once."""
    run_rank(**vars(parse(arguments)))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """What a launcher gives a rank: `config`, `overrides`, `out`, `resume`."""
    parser = argparse.ArgumentParser(prog="python -m rn50.train", description=__doc__)
    parser.add_argument("config", help="a preset's name or a YAML file")
    parser.add_argument(
        "overrides", nargs="*", help="key.path=value, such as batch.per_rank=16"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the run's files"
    )
    parser.add_argument("--resume", type=Path, help="checkpoint to go on from")
    return parser.parse_intermixed_args(arguments)


def run_rank(
    config: str,
    overrides: list[str],
    out: Path,
    resume: Path | None = None,
    train: Callable[[RunContext], None] | None = None,
) -> None:
    """Load the config, check it against the launcher's ranks, train. A failure ends the
    process. `train`: takes the place of training (`tests/lab/thin_rank.py` has no MXNet).

    Args:
        config: a preset's name or a YAML file.
        overrides: key.path=value, as on the command line.
        out: the folder for the run's files.
        resume: the checkpoint to go on from.
        train: takes the place of training.
    """
    # Threads inherit the mask, and one takes the signal, so that a main thread blocked inside MXNet
    # or MPI cannot miss it. Threads that a library started before (OpenBLAS does) may get it too:
    # the handler, which any thread runs, then passes it on.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    rank = Rank(out)
    signal.set_wakeup_fd(rank.to_signals.fileno())
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)
    try:
        if os.sep in config and not Path(config).exists():
            shared = "system.results has to be a folder that all nodes share"
            raise UserError(
                f"{config}: the run's config expected, found none: {shared}"
            )
        loaded = load(config, overrides)
        check_ranks(loaded.run, rank.process)
        if loaded.run.seed is None:
            loaded = load(config, [*overrides, f"seed={draw_seed()}"])
        check_supported(loaded.run)
        resumed = None
        if resume is not None:
            resumed = read_checkpoint(resume)
            check_config(resumed, loaded)
        if rank.process.rank == 0:
            # Before the log is opened, which empties it.
            rank.held.enter_context(
                hold(RunFolder(out).rank_lock, lost=rank.taken_over)
            )
        rank.context = context = RunContext(loaded, out, rank.process, resumed)
        threading.Thread(
            target=rank.stop_on_signal, args=(context,), daemon=True
        ).start()
        if address := os.environ.get(WATCHDOG_ENV):
            rank.heartbeat = HeartbeatClient(address, context, rank.end)
        context.prepare()
        (train or _train)(context)
        if rank.heartbeat is not None:
            rank.heartbeat.stop()
        rank.release()
    except FolderInUse as error:
        print(f"rn50: error: {error}", file=sys.stderr, flush=True)
        os._exit(EXIT_USAGE)
    # whatever it was, the other ranks must not wait for this one
    except BaseException as error:
        rank.fail(error)


def _train(context: RunContext) -> None:
    context.begin_connecting()
    with context.timeline.span("load MXNet and Horovod"):
        if path := library():
            load_library(path)
        faulthandler.enable()  # a crash ends the process; MXNet's own handlers can hang
        from .run import train_and_evaluate
    train_and_evaluate(context)


class Rank:
    """This process and what it holds, with all the ways in which it ends at once. None runs exit
    handlers: Horovod's would wait for the other ranks. `phase`: what it does without a context."""

    def __init__(self, out: Path, phase: str = "start") -> None:
        self.process = read_process_info()
        self.held = ExitStack()
        """The lock of the folder, which rank 0 holds."""
        self.context: RunContext | None = None
        self.heartbeat: HeartbeatClient | None = None
        self._signals, self.to_signals = socket.socketpair()
        self.to_signals.setblocking(False)
        self._out = out
        self._phase = phase

    @property
    def phase(self) -> str:
        """What this rank does."""
        return self.context.timeline.phase if self.context else self._phase

    def fail(self, error: BaseException) -> NoReturn:
        """Say why in one line and in a file, close the log, end."""
        context = self.context
        process = self.process
        failure = Failure(
            process.rank,
            process.host,
            phase=self.phase,
            step=context.step if context else 0,
            reason=one_line(error),
        )
        if isinstance(error, AllRanksError):
            failure = replace(failure, by_all=process.world_size > 1, **vars(error))
        # First: out of memory, anything may end the process from here.
        if self.heartbeat is not None:
            self.heartbeat.tell(failure=to_dict(failure))
        else:  # for the launcher, which may not see this rank's folder
            print(failure.line, file=sys.stderr, flush=True)
        if not isinstance(error, UserError):
            traceback.print_exc()
        self._close_log()
        if context is not None:
            with suppress(OSError):  # the reason counts more
                context.write_timeline()
        self.say(one_line(error))
        try:
            write(self._out / failure.file_name, failure)
        except OSError as problem:
            print(f"{self._out}: cannot write: {problem.strerror}", file=sys.stderr)
        self._exit(EXIT_FAILED)

    def end(self, reason: str) -> NoReturn:
        """End this process. The watchdog's thread calls it: the main thread may never come back."""
        self._close_log()
        self.say(reason)
        # the launcher, which would do it, may be gone
        if folder := os.environ.get(SCRATCH_ENV):
            shutil.rmtree(folder, ignore_errors=True)
        self._exit(EXIT_FAILED)

    def stop_on_signal(self, context: RunContext) -> None:
        """Ask for a checkpoint and an orderly end; where that takes too long, end."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        number = self._signals.recv(1)[0]
        # It may come again when the first has been obeyed: a rank that writes its checkpoint or
        # takes leave of the others is not ended by that.
        if self.heartbeat is not None:  # names a step, and us
            self.heartbeat.tell(stop=signal.Signals(number).name)
        else:
            context.stop(Cause.REQUESTED)
        if context.is_started:
            time.sleep(context.grace_s)
        self._close_log()
        self._exit(128 + number)

    def taken_over(self, holder: str) -> NoReturn:
        """From the lock's thread: the log is another's now, as this process was held up for so long
        that it counted as dead."""
        self.say(f"{self._out}: taken over by {holder}")
        os._exit(EXIT_FAILED)

    def release(self) -> None:
        """Give the lock back; this process ends without unwinding."""
        with suppress(OSError):
            self.held.close()

    def say(self, reason: str) -> None:
        """Print why this rank ends, and which it is."""
        process = self.process
        rank = f"rank {process.rank} on {process.host} in {self.phase}"
        print(f"{rank}: {reason}", file=sys.stderr, flush=True)

    def _close_log(self) -> None:
        if self.context is not None:
            self.context.give_back()
            with suppress(UserError):  # a full disk has been reported already
                self.context.log.abort()

    def _exit(self, code: int) -> NoReturn:
        sys.stderr.flush()
        self.release()
        os._exit(code)


def check_ranks(run: Run, process: ProcessInfo) -> None:
    """Raise UserError where the ranks are not the config's, or have no seed in common."""
    ranks = run.system.world_size
    if ranks != process.world_size:
        raise UserError(
            f"system.nodes x system.ranks_per_node = {ranks} ranks expected, "
            f"found {process.world_size}: start them with `rn50 launch`"
        )
    if run.seed is None and process.world_size > 1:
        raise UserError(
            f"seed: one for all {ranks} ranks expected, such as seed=1, found none: "
            "`rn50 launch` draws one"
        )


def one_line(error: BaseException) -> str:
    """An error as one line; MXNet's and DALI's spread over many, stack frames among them."""
    name = type(error).__name__
    lines = []
    for line in map(str.strip, str(error).splitlines()):
        if line and not line.startswith(_FRAMES):
            lines.append(line)
    message = " ".join(lines).removeprefix(f"{name}: ")
    if not message:
        message = "out of memory" if isinstance(error, MemoryError) else "no message"
    if not isinstance(error, UserError):
        message = f"{name}: {message}"
    return message[:500]


if __name__ == "__main__":
    main()
