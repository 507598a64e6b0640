"""One rank that joins as in training: `connection_body.py ADAPTER`. Prints the functions of libc
whose code MPI has changed, and the libraries that are loaded."""

import ctypes
import json
import sys
from pathlib import Path

from rn50.config.load import load
from rn50.logging.timeline import Timeline
from rn50.train.communication import connection

HOOKED = ("mmap", "munmap", "mremap", "madvise", "brk", "sbrk", "shmat", "shmdt")
LIBC = ctypes.CDLL(None)


def codes() -> dict[str, bytes]:
    """The first bytes of each function."""
    functions = {name: getattr(LIBC, name) for name in HOOKED}
    return {name: bytes(ctypes.string_at(f, 16)) for name, f in functions.items()}


if __name__ == "__main__":
    has_adapter = bool(int(sys.argv[1]))
    connection._has_adapter = lambda: has_adapter  # type: ignore[assignment]
    original = codes()
    joining = connection.Connection(load("smoke").run, Timeline(0), over_mpi=True)
    joining.begin()
    at_once = codes()
    joining.wait()
    after = codes()
    changed = [name for name in HOOKED if original[name] != after[name]]
    assert not has_adapter or at_once == after
    libraries = Path("/proc/self/maps").read_text()
    print(json.dumps({"changed": changed, "libraries": libraries}), flush=True)
    from horovod.common import process_sets

    process_sets._basics.shutdown()
    joining.leave()
