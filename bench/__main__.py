"""`python -m rn50.bench NAME FOLDER [ARGUMENT ...]`: one rank of a benchmark.

FOLDER holds the config; rank 0 leaves what the benchmark's rank body returns there, as bench.json.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from ..config.atomic import write_file
from ..train.__main__ import EXIT_FAILED, one_line
from ..train.process_info import read_process_info
from . import module_name
from .harness import BENCHMARKS


def main(name: str, out: Path, *arguments: str) -> None:
    """Run the rank body of a benchmark.

    If it fails, the reason is left in the folder, as a rank that trains leaves it, and the process
    ends at once: exit handlers would wait for the other ranks.
    """
    place = read_process_info()
    try:
        importlib.import_module(module_name(name))
        measured = BENCHMARKS[name].rank(out, *arguments)
        if place.rank == 0:
            write_file(out / "bench.json", json.dumps(measured))
    except BaseException as error:  # whatever it was, the others must not wait
        failure = {"rank": place.rank, "host": place.host, "phase": "benchmark", "step": 0}
        traceback.print_exc()
        with suppress(OSError):
            text = json.dumps(failure | {"reason": one_line(error)}) + "\n"
            write_file(out / f"failure_{place.rank}.json", text)
        sys.stderr.flush()
        os._exit(EXIT_FAILED)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
