"""Who this process is, read from its launcher's environment before any framework is loaded."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import NamedTuple

from ..config.local_rank import LAUNCHED_BY


class ProcessInfo(NamedTuple):
    launcher: str
    rank: int
    world_size: int
    local_rank: int
    host: str

    @property
    def over_mpi(self) -> bool:
        """MPI joins the ranks; else Gloo does, or there is but one."""
        return self.launcher not in ("horovodrun", "none")


def read_process_info(environment: Mapping[str, str] = os.environ) -> ProcessInfo:
    """This process among the ranks; rank 0 of 1 without a launcher."""
    host = socket.gethostname()
    for launcher, *names in (variables[:4] for variables in LAUNCHED_BY):
        if all(environment.get(name, "").isdecimal() for name in names):
            rank, world_size, local_rank = (int(environment[name]) for name in names)
            return ProcessInfo(launcher, rank, world_size, local_rank, host)
    return ProcessInfo("none", 0, 1, 0, host)
