"""Worker processes: they die with the process that started them, and leave Ctrl-C to it."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

_PR_SET_PDEATHSIG = 1


@contextmanager
def worker_pool(
    processes: int, begin: Callable[[], object] = lambda: None
) -> Iterator[ProcessPoolExecutor]:
    """Processes forked from this one; each calls `begin` first. At the end of the block they finish
    what they are doing and end. Raises OSError: one was killed."""
    pool = ProcessPoolExecutor(
        processes, multiprocessing.get_context("fork"), _begin, (os.getpid(), begin)
    )
    try:
        yield pool
    except BrokenProcessPool:
        raise OSError(0, "a worker process was killed") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(parent: int, begin: Callable[[], object]) -> None:
    end_with(parent, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()  # what its parent dropped may wait for threads of its parent
    begin()


def end_with(parent: int, ended_by: signal.Signals) -> None:
    """This process gets the signal when the one that started it ends, however that does; also when
    it executes another program."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ended_by)
    # it ended before the call, and another process is the parent now
    if os.getppid() != parent:
        os._exit(1)
