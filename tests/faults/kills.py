"""The process of a rank, to be killed in the middle of its run."""

from __future__ import annotations

from pathlib import Path

import psutil

from rn50.train.process_info import read_process_info


def rank_process(parent: int, rank: int) -> psutil.Process | None:
    """The process of a rank below the launcher, once it is there."""
    for child in psutil.Process(parent).children(recursive=True):
        try:
            command, environment = child.cmdline(), child.environ()
        except psutil.Error:
            continue
        found = read_process_info(environment)
        ours = "rn50.train" in command and "python" in Path(command[0]).name
        if ours and found.launcher != "none" and found.rank == rank:
            return child
    return None
