"""One rank that joins as in training. Prints the functions of libc whose code MPI has changed, and
the libraries that are loaded."""

import ctypes
import json
from pathlib import Path

from rn50.config.load import load
from rn50.logging.timeline import Timeline
from rn50.train.communication.connection import Connection

HOOKED = ("mmap", "munmap", "mremap", "madvise", "brk", "sbrk", "shmat", "shmdt")
LIBC = ctypes.CDLL(None)


def codes() -> dict[str, bytes]:
    """The first bytes of each function."""
    functions = {name: getattr(LIBC, name) for name in HOOKED}
    return {name: bytes(ctypes.string_at(f, 16)) for name, f in functions.items()}


if __name__ == "__main__":
    original = codes()
    joining = Connection(load("smoke").run, Timeline(0), over_mpi=True)
    joining.begin()
    at_start = codes()
    changes = [name for name in HOOKED if original[name] != at_start[name]]
    joining.wait()
    assert codes() == at_start, "changed beside other threads"
    libraries = Path("/proc/self/maps").read_text()
    print(json.dumps({"changed": changes, "libraries": libraries}), flush=True)
    from horovod.common import process_sets

    process_sets._basics.shutdown()
    joining.leave()
