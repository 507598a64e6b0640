"""What the engines read from the environment, set in one place from the config. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from ..config.errors import UserError
from ..config.schema import Run
from ..scaling.cost import grid, parse_algorithm

Backend = Literal["mpi", "gloo", "nccl"]

_SEGMENT_BYTES = 1 << 20


def _tuned(**choices: str) -> dict[str, str]:
    """Open MPI's algorithm by number for collectives of its `tuned` component."""
    return {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1"} | {
        f"OMPI_MCA_coll_tuned_{name}": number for name, number in choices.items()
    }


# (backend, comm.algorithm) -> settings. NCCL rows: not run here (no GPU), tested as text.
ALGORITHMS: dict[tuple[Backend, str], dict[str, str]] = {
    ("mpi", "auto"): {},
    ("mpi", "recursive_doubling"): _tuned(allreduce_algorithm="3"),
    ("mpi", "ring"): _tuned(allreduce_algorithm="4"),
    ("mpi", "segmented_ring"): _tuned(
        allreduce_algorithm="5", allreduce_algorithm_segmentsize=str(_SEGMENT_BYTES)
    ),
    ("mpi", "recursive_halving_doubling"): _tuned(allreduce_algorithm="6"),
    # The three steps of train/torus.py, each as a ring; Open MPI's own choice for a reduce-scatter
    # of some MB is twice as slow.
    ("mpi", "torus_2d"): _tuned(
        allreduce_algorithm="4", reduce_scatter_algorithm="3", allgatherv_algorithm="3"
    ),
    ("gloo", "auto"): {},
    ("gloo", "ring"): {},  # the only one that Horovod asks of Gloo
    ("gloo", "torus_2d"): {},
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
        UserError: the backend does not offer the algorithm, or the ranks do not form its grid.
    """
    algorithm = run.comm.algorithm.partition("(")[0]  # torus_2d(2x4): the grid is not theirs
    if (backend, algorithm) not in ALGORITHMS:
        offered = ", ".join(name for kind, name in ALGORITHMS if kind == backend)
        raise UserError(
            f"comm.algorithm: one that {backend} offers expected ({offered}), "
            f"found {run.comm.algorithm}"
        )
    if algorithm == "torus_2d" and backend != "nccl":
        torus_grid(run.comm.algorithm, run.system.nodes * run.system.ranks_per_node)
    wanted = {
        "OMP_NUM_THREADS": str(run.system.cores_per_rank),
        # Groups are static: Horovod keeps them as they are and answers from its response cache.
        "HOROVOD_DISABLE_GROUP_FUSION": "1",
        "HOROVOD_CYCLE_TIME": f"{run.comm.cycle_ms:g}",
        "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0",
        **ALGORITHMS[backend, algorithm],
    }
    if backend == "mpi":
        # Ranks share cores here: a rank that waits gives its core away instead of spinning.
        wanted["OMPI_MCA_mpi_yield_when_idle"] = "1"
        # Over TCP: send, never put. Puts make exchanges between two ranks nearly half duplex
        # (25 MB, 4 ranks, 200 Mbit/s, recursive halving/doubling: 2.6 s against 1.7 s).
        wanted["OMPI_MCA_btl_tcp_flags"] = "1"
        wanted["HOROVOD_CPU_OPERATIONS"] = "MPI"
    elif backend == "gloo":
        wanted["HOROVOD_CPU_OPERATIONS"] = "GLOO"
    kept = {
        name: present[name] for name in wanted if present.get(name, wanted[name]) != wanted[name]
    }
    return Environment({n: v for n, v in wanted.items() if n not in kept}, kept)


def torus_grid(algorithm: str, ranks: int) -> tuple[int, int]:
    """(rows, columns) of `torus_2d` (as square as the rank count allows) or `torus_2d(RxC)`.

    Raises:
        UserError: the ranks do not form that grid, or none with two rows and two columns.
    """
    try:
        rows, columns = parse_algorithm(algorithm, ranks)[1] or grid(ranks)
    except ValueError as error:
        raise UserError(f"comm.algorithm: {error}") from None
    if rows < 2 or columns < 2:
        raise UserError(
            f"comm.algorithm: ranks in a grid of at least 2x2 for {algorithm} expected, "
            f"found {ranks} = {rows}x{columns}"
        )
    return rows, columns
