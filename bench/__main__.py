"""`python -m rn50.bench NAME FOLDER [ARGUMENT ...]`: one rank of a benchmark.

FOLDER holds the config; rank 0 leaves what the benchmark's rank body returns there, as bench.json.
The arguments are JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from ..config.atomic import write_file
from ..train.__main__ import Rank
from . import module_name
from .harness import BENCHMARKS


def main(name: str, out: Path, *arguments: str) -> None:
    """Run the rank body of a benchmark.

    If it fails, the reason is left in the folder and the process ends at once.
    """
    rank = Rank(out, phase="benchmark")
    try:
        importlib.import_module(module_name(name))
        measured = BENCHMARKS[name].rank(out, *map(json.loads, arguments))
        if rank.process.rank == 0:
            write_file(out / "bench.json", json.dumps(measured))
    except BaseException as error:  # whatever it was, the others must not wait
        rank.fail(error)


if __name__ == "__main__":
    _, name, folder, *arguments = sys.argv
    main(name, Path(folder), *arguments)
