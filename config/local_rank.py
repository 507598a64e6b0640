"""Where a process reads its place among the ranks: one table of launchers' variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple


class RankVariables(NamedTuple):
    """The names of one launcher's variables; None: it sets none."""

    launcher: str
    rank: str
    world_size: str
    local_rank: str
    local_size: str | None


def _with_prefix(launcher: str, prefix: str) -> RankVariables:
    """The variables of a launcher that gives all four one beginning."""
    names = (f"{prefix}_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
    return RankVariables(launcher, *names)


_PER_NODE = "SLURM_NTASKS_PER_NODE"
LAUNCHED_BY = (
    _with_prefix("horovodrun", "HOROVOD"),
    _with_prefix("mpirun", "OMPI_COMM_WORLD"),
    _with_prefix("mvapich2", "MV2_COMM_WORLD"),
    RankVariables("hydra", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    _with_prefix("pals", "PMI"),
    RankVariables("pals", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", None),
    # srun by what its --mpi= was: pmix, pmi2, cray_shasta. Slurm's own variables are a batch
    # script's as well, which is no rank.
    RankVariables("srun", "PMIX_RANK", "SLURM_NTASKS", "SLURM_LOCALID", _PER_NODE),
    RankVariables("srun", "PMI_RANK", "PMI_SIZE", "SLURM_LOCALID", _PER_NODE),
    RankVariables("srun", "PALS_RANKID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", _PER_NODE),
)
"""Tried in this order. Slurm's come last: mpirun within an allocation starts its ranks from one
task, so that all of them see its SLURM_LOCALID 0. `scripts/bind.sh` has the same order."""


def local_rank(environment: Mapping[str, str] = os.environ) -> int:
    """The number of this process on its node, from any launcher's environment; 0 without one."""
    for names in LAUNCHED_BY:
        if environment.get(names.local_rank, "").isdecimal():
            return int(environment[names.local_rank])
    return 0
