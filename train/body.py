"""`python -m rn50.train.body PHASE MODULE:BODY FOLDER [ARGUMENT ...]`: one rank of what is no run,
such as a benchmark or an evaluation.

FOLDER holds the config; rank 0 leaves what BODY(FOLDER, ARGUMENT ...) returns there, in ANSWER. The
arguments are JSON. PHASE is what a rank that fails was doing.
"""

from __future__ import annotations

import json
import pkgutil
import sys
from pathlib import Path

from ..host.atomic import write_file
from .__main__ import Rank

ANSWER = "answer.json"


def main(phase: str, body: str, folder: str, *arguments: str) -> None:
    """Run `body` on this rank. If it fails, the reason is left in the folder and the process ends
    at once.

    Args:
        phase: what the rank does, in a message.
        body: a module and its function.
        folder: of the config.
        arguments: of the function, behind the folder.
    """
    out = Path(folder)
    rank = Rank(out, phase)
    try:
        answer = pkgutil.resolve_name(body)(out, *map(json.loads, arguments))
        if rank.process.rank == 0:
            write_file(out / ANSWER, json.dumps(answer))
    except BaseException as error:  # whatever it was, the others must not wait
        rank.fail(error)


if __name__ == "__main__":
    main(*sys.argv[1:])
