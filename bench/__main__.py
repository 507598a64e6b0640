"""`python -m rn50.bench MODULE:BODY FOLDER [ARGUMENT ...]`: one rank of a benchmark.

FOLDER holds the config; rank 0 leaves what BODY(FOLDER, ARGUMENT ...) returns there, as bench.json.
The arguments are JSON.
"""

from __future__ import annotations

import json
import pkgutil
import sys
from pathlib import Path

from ..host.atomic import write_file
from ..train.__main__ import Rank


def main(body: str, out: Path, *arguments: str) -> None:
    """Run `body` on this rank.

    If it fails, the reason is left in the folder and the process ends at once.
    """
    rank = Rank(out, phase="benchmark")
    try:
        measured = pkgutil.resolve_name(body)(out, *map(json.loads, arguments))
        if rank.process.rank == 0:
            write_file(out / "bench.json", json.dumps(measured))
    except BaseException as error:  # whatever it was, the others must not wait
        rank.fail(error)


if __name__ == "__main__":
    _, body, folder, *arguments = sys.argv
    main(body, Path(folder), *arguments)
