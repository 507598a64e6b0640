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


LAUNCHED_BY = (
    RankVariables(
        "horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"
    ),
    RankVariables(
        *("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ),
    RankVariables(
        *("mvapich2", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
        *("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ),
    RankVariables("hydra", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    RankVariables("pals", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
    RankVariables("pals", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", None),
    RankVariables(
        *("jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
        *("JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"),
    ),
    # srun by what its --mpi= was: pmix, pmi2, cray_shasta. Slurm's own variables are a batch
    # script's as well, which is no rank.
    RankVariables("srun", "PMIX_RANK", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
    RankVariables("srun", "PMI_RANK", "PMI_SIZE", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
    RankVariables(
        *("srun", "PALS_RANKID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
        "SLURM_NTASKS_PER_NODE",
    ),
)
"""Asked in this order. Slurm's come last: mpirun within an allocation starts its ranks from one
task, so that all of them see its SLURM_LOCALID 0. `scripts/bind.sh` has the same order."""


def local_rank(environment: Mapping[str, str] = os.environ) -> int:
    """The number of this process on its node, from any launcher's environment; 0 without one."""
    for names in LAUNCHED_BY:
        if environment.get(names.local_rank, "").isdecimal():
            return int(environment[names.local_rank])
    return 0
