"""What sums the gradients (NCCL, Gloo or an MPI), and the allreduce algorithms that each offers.

`train/communication/mpi_library.py` says which MPI Horovod was linked to.
"""

from __future__ import annotations

from typing import Literal

Controller = Literal["mpi", "gloo"]
"""What coordinates Horovod's processes, whatever moves the gradients."""
Backend = Literal["mpi", "gloo", "nccl"]
Family = Literal["openmpi", "mpich", "intel", "cray"]
PRODUCTS: dict[Family, str] = {
    "openmpi": "Open MPI",
    "mpich": "MPICH",
    "intel": "Intel MPI",
    "cray": "Cray MPICH",
}

WITHOUT_HOOKS = {
    "OMPI_MCA_memory": "^patcher",
    "UCX_MEM_MMAP_HOOK_MODE": "none",
    "UCX_MEM_CUDA_HOOK_MODE": "none",
    "FI_MR_CACHE_MONITOR": "disabled",
}
"""Open MPI, UCX and libfabric overwrite the first bytes of munmap, brk and others while they start,
to learn when memory that is registered with a network adapter is given back. A thread that is in
such a call then returns into other code: one of some 560 starts over `btl ofi` crashed so, in
MXNet's import."""

_SEGMENT_BYTES = 1 << 20


def _tuned(**choices: str) -> dict[str, str]:
    """Open MPI's algorithm by number for collectives of its `tuned` component, and Open MPI 5's
    `han`, which would sum within the nodes first, behind it (priority 35 there, tuned 30)."""
    chosen = {f"OMPI_MCA_coll_tuned_{name}": number for name, number in choices.items()}
    rules = {
        "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
        "OMPI_MCA_coll_han_priority": "0",
    }
    return rules | chosen


def _mpich(**choices: str) -> dict[str, str]:
    """MPICH's algorithms by name, for any size and in any place: not those of its devices."""
    chosen = {
        f"MPIR_CVAR_{key.upper()}_INTRA_ALGORITHM": name
        for key, name in choices.items()
    }
    return {"MPIR_CVAR_DEVICE_COLLECTIVES": "none"} | chosen


def _intel(**choices: str) -> dict[str, str]:
    """Intel MPI's algorithms by number."""
    return {f"I_MPI_ADJUST_{name.upper()}": number for name, number in choices.items()}


# Engine -> comm.algorithm -> settings. Intel's rows were checked as text alone. NCCL's never ran on
# a GPU; the torus and `hierarchical` ran on a fake NCCL (tests/gpu). The torus over MPI is the
# three steps of train/communication/torus.py, each as a ring where there is a choice; Open MPI's
# own one for a reduce-scatter of some MB is twice as slow.
ALGORITHMS: dict[str, dict[str, dict[str, str]]] = {
    "openmpi": {
        "auto": {},
        "recursive_doubling": _tuned(allreduce_algorithm="3"),
        "ring": _tuned(allreduce_algorithm="4"),
        "segmented_ring": _tuned(
            allreduce_algorithm="5", allreduce_algorithm_segmentsize=str(_SEGMENT_BYTES)
        ),
        "recursive_halving_doubling": _tuned(allreduce_algorithm="6"),
        "torus_2d": _tuned(
            allreduce_algorithm="4",
            reduce_scatter_algorithm="3",
            allgatherv_algorithm="3",
        ),
    },
    "mpich": {
        "auto": {},
        "recursive_doubling": _mpich(allreduce="recursive_doubling"),
        # Of the blocking ones MPICH 4.0 has no ring; of those that it starts and waits for, it has.
        "ring": _mpich(allreduce="nb", iallreduce="tsp_ring"),
        "recursive_halving_doubling": _mpich(allreduce="reduce_scatter_allgather"),
        "torus_2d": _mpich(
            allreduce="nb",
            iallreduce="tsp_ring",
            reduce_scatter="pairwise",
            allgatherv="ring",
        ),
    },
    "intel": {
        "auto": {},
        "recursive_doubling": _intel(allreduce="1"),
        "ring": _intel(allreduce="8"),
        "recursive_halving_doubling": _intel(allreduce="2"),
        "torus_2d": _intel(allreduce="8", reduce_scatter="2", allgatherv="3"),
    },
    # These read neither Open MPI's nor MPICH's settings for sure.
    **{name: {"auto": {}, "torus_2d": {}} for name in ("cray", "mpi")},
    "gloo": {
        "auto": {},
        "ring": {},  # the only one that Horovod asks of Gloo
        "torus_2d": {},
    },
    "nccl": {
        "auto": {},
        "ring": {"NCCL_ALGO": "Ring"},
        "double_tree": {"NCCL_ALGO": "Tree"},
        "torus_2d": {"HOROVOD_TORUS_ALLREDUCE": "1"},
        "hierarchical": {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"},
    },
}
