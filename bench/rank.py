"""What every benchmark on ranks begins with: a rank of ours, started and quiet."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.atomic import write_file
from ..config.load import load
from ..train.__main__ import EXIT_FAILED, one_line
from ..train.context import RunContext
from ..train.process_info import read_process_info
from ..train.progress import Progress
from .rounds import count_rounds

if TYPE_CHECKING:
    from ..train.trainer import Trainer


def main_of(body: Callable[..., None]) -> None:
    """Call `body` with this process's arguments (config, folder, ...).

    What fails it is left in the folder, as a rank that trains does; the process ends at once, since
    exit handlers would wait for the other ranks.
    """
    try:
        body(*sys.argv[1:])
    except BaseException as error:  # whatever it was, the others must not wait
        place, out = read_process_info(), Path(sys.argv[2])
        failure = {"rank": place.rank, "host": place.host, "phase": "benchmark", "step": 0}
        traceback.print_exc()
        with suppress(OSError):
            text = json.dumps(failure | {"reason": one_line(error)}) + "\n"
            write_file(out / f"failure_{place.rank}.json", text)
        sys.stderr.flush()
        os._exit(EXIT_FAILED)


def start_rank(config: str, out: str) -> Trainer:
    """The rank that this process is, of `config`, after start-up; its log goes to `out`."""
    loaded = load(config)
    context = RunContext(loaded, Path(out), read_process_info())
    context.progress = Progress(context.plan, loaded.run.eval.target, shown=False)
    context.prepare()
    from ..train.trainer import start_up

    return start_up(context)


def rank_rounds(rank: Trainer, out: str, rounds: str) -> Iterator[int]:
    """The rounds of a benchmark on ranks, noted in `out` by rank 0 alone."""
    return count_rounds(Path(out), int(rounds), noted=rank.context.process.rank == 0)
