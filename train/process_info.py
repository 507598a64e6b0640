"""Who this process is, read from its launcher's environment before any framework is loaded."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from typing import NamedTuple

RANK_VARIABLES = "RN50_RANK_VARIABLES"
"""Names the variables of a launcher that the table below does not have, for the ranks and for
`scripts/bind.sh`: a `RankVariables` with commas between."""


class RankVariables(NamedTuple):
    """The names of one launcher's variables; None: it sets none."""

    rank: str
    world_size: str
    local_rank: str
    local_size: str | None = None


def _with_prefix(prefix: str) -> RankVariables:
    """The variables of a launcher that gives all four one beginning."""
    names = (
        f"{prefix}_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    )
    return RankVariables(*names)


_PER_NODE = "SLURM_NTASKS_PER_NODE"
LAUNCHED_BY = (
    _with_prefix("HOROVOD"),
    _with_prefix("OMPI_COMM_WORLD"),
    RankVariables("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    _with_prefix("PMI"),
    # srun by what its --mpi= was: pmix, pmi2, cray_shasta. Slurm's own variables are a batch
    # script's as well, which is no rank.
    RankVariables("PMIX_RANK", "SLURM_NTASKS", "SLURM_LOCALID", _PER_NODE),
    RankVariables("PMI_RANK", "PMI_SIZE", "SLURM_LOCALID", _PER_NODE),
    RankVariables("PALS_RANKID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", _PER_NODE),
)
"""Tried in this order, also for ranks that were started by hand. Slurm's come last: mpirun within
an allocation starts its ranks from one task, so that all of them see its SLURM_LOCALID 0.
`scripts/bind.sh` has the same order."""


class ProcessInfo(NamedTuple):
    rank: int
    world_size: int
    local_rank: int
    host: str
    over_mpi: bool = False
    """MPI joins the ranks; else Gloo does, as its launcher tells Horovod, or there is but one."""


def read_process_info(environment: Mapping[str, str] = os.environ) -> ProcessInfo:
    """This process among the ranks; rank 0 of 1 without a launcher."""
    host = socket.gethostname()
    over_mpi = environment.get("HOROVOD_CONTROLLER") != "gloo"
    for variables in _launched_by(environment):
        values = [environment.get(name, "") for name in variables[:3]]
        if all(map(str.isdecimal, values)):
            rank, world_size, local_rank = map(int, values)
            return ProcessInfo(rank, world_size, local_rank, host, over_mpi)
    return ProcessInfo(0, 1, 0, host)


def _launched_by(environment: Mapping[str, str]) -> Iterator[RankVariables]:
    """The launchers whose variables a process looks for, in their order."""
    if names := environment.get(RANK_VARIABLES):
        yield RankVariables(*names.split(","))
    yield from LAUNCHED_BY


def local_rank(environment: Mapping[str, str] = os.environ) -> int:
    """The number of this process on its node, from any launcher's environment; 0 without one."""
    for variables in _launched_by(environment):
        number = environment.get(variables.local_rank, "")
        if number.isdecimal():
            return int(number)
    return 0
