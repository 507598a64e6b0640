"""What the engines read from the environment, set in one place from the config. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from ..config.errors import UserError
from ..config.schema import Run

Backend = Literal["mpi", "gloo", "nccl"]

_TUNED = "OMPI_MCA_coll_tuned_allreduce_algorithm"
_DYNAMIC = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1"}

# (backend, comm.algorithm) -> settings. NCCL rows: not run here (no GPU), tested as text.
ALGORITHMS: dict[tuple[Backend, str], dict[str, str]] = {
    ("mpi", "auto"): {},
    ("mpi", "ring"): _DYNAMIC | {_TUNED: "4"},
    ("mpi", "recursive_halving_doubling"): _DYNAMIC | {_TUNED: "6"},
    ("gloo", "auto"): {},
    ("nccl", "auto"): {},
    ("nccl", "ring"): {"NCCL_ALGO": "Ring"},
    ("nccl", "double_tree"): {"NCCL_ALGO": "Tree"},
    ("nccl", "torus_2d"): {"HOROVOD_TORUS_ALLREDUCE": "1"},
    ("nccl", "hierarchical"): {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"},
}


class Environment(NamedTuple):
    """Variables to set, and those that the user had set already (theirs win)."""

    settings: dict[str, str]
    kept: dict[str, str]


def engine_environment(run: Run, backend: Backend, present: Mapping[str, str]) -> Environment:
    """The engines' environment for `run`, given what is `present` already.

    Raises:
        UserError: the backend does not offer the algorithm.
    """
    if (backend, run.comm.algorithm) not in ALGORITHMS:
        offered = ", ".join(name for kind, name in ALGORITHMS if kind == backend)
        raise UserError(
            f"comm.algorithm: one that {backend} offers expected ({offered}), "
            f"found {run.comm.algorithm}"
        )
    wanted = {
        "OMP_NUM_THREADS": str(run.system.cores_per_rank),
        # Groups are static: Horovod keeps them as they are and answers from its response cache.
        "HOROVOD_DISABLE_GROUP_FUSION": "1",
        "HOROVOD_CYCLE_TIME": f"{run.comm.cycle_ms:g}",
        "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0",
        **ALGORITHMS[backend, run.comm.algorithm],
    }
    if backend == "mpi":
        # Ranks share cores here: a rank that waits gives its core away instead of spinning.
        wanted["OMPI_MCA_mpi_yield_when_idle"] = "1"
        wanted["HOROVOD_CPU_OPERATIONS"] = "MPI"
    elif backend == "gloo":
        wanted["HOROVOD_CPU_OPERATIONS"] = "GLOO"
    kept = {
        name: present[name] for name in wanted if present.get(name, wanted[name]) != wanted[name]
    }
    return Environment({n: v for n, v in wanted.items() if n not in kept}, kept)
