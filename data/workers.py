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
    processes: int,
    begin: Callable[[], object] = lambda: None,
) -> Iterator[ProcessPoolExecutor]:
    """Processes forked from this one; each calls `begin` first. At the end of the block they finish
    what they are doing and end. Raises OSError: one was killed."""
    pool = ProcessPoolExecutor(
        processes,
        multiprocessing.get_context("fork"),
        _begin,
        (os.getpid(), begin),
    )
    try:
        yield pool
    except BrokenProcessPool:
        raise OSError(0, "a worker process was killed") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(parent: int, begin: Callable[[], object]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()  # what its parent dropped may wait for threads of its parent
    begin()
