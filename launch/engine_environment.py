"""What the engines read from the environment, set in one place from the config. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ..config.communication import Communication, engine_of, plan_communication
from ..config.engines import WITHOUT_HOOKS, Backend, Controller, Family
from ..config.schema import Run

# Backend -> settings with any algorithm. The bulk sizes are NVIDIA's for this benchmark (training
# results v0.7 to v2.1): the engine waits for the stream after each bulk. With its default of 15
# operators it did so 90 times a step of SGD, with 999 forward 76 times (counted on a fake GPU).
# Backward's stays small, since a bulk's gradients leave only after all of it; with a single group
# nothing leaves before its end.
SETTINGS: dict[Backend, dict[str, str]] = {
    "mpi": {"HOROVOD_CPU_OPERATIONS": "MPI"},
    "gloo": {"HOROVOD_CPU_OPERATIONS": "GLOO"},
    "nccl": {
        "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD": "999",
        "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD": "25",
        # MXNet was built with cuDNN 8.1 and runs on 8.9: a warning of each rank, here left out.
        "MXNET_CUDNN_LIB_CHECKING": "0",
        # Each kernel is loaded at its first call; a run needs few of the libraries' thousands.
        "CUDA_MODULE_LOADING": "LAZY",
        # What the driver compiles is kept; older ones would keep 256 MB.
        "CUDA_CACHE_MAXSIZE": str(4 << 30),
    },
}


# Ranks share cores here: a rank that waits gives its core away instead of spinning.
_SHARING: dict[Family | None, dict[str, str]] = {
    # Flags 1: TCP sends, without RDMA-like puts, which make exchanges between two ranks nearly half
    # duplex (25 MB, 4 ranks, 200 Mbit/s, recursive halving/doubling: 2.6 s against 1.7 s).
    "openmpi": {"OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_btl_tcp_flags": "1"},
    "mpich": {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1"},
}

# Where process_vm_readv is refused, as in many containers, Open MPI 4 copies in another way all the
# same, but with a line a message: 1,624 in 50 steps of `smoke`.
_WITHOUT_COPIES = {
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "OMPI_MCA_smsc": "^cma",  # Open MPI 5
}

_BRIDGE = re.compile(r"(docker|podman|cni-podman|virbr|lxcbr|lxdbr)\d+|br-[0-9a-f]{12}")
"""Bridges of containers and virtual machines on one host: they lead to no other. Open MPI tried one
for ever (518,000 lines of "bind on local address" in 90 s)."""
_BRIDGES = ("podman", "cni-podman", "virbr", "lxcbr", "lxdbr", "br-")


class EngineSettings(NamedTuple):
    """Variables to set, and those that the user had set already: theirs win. `removed`: whose those
    are that the ranks do not get, by name (inherited.py). `plan`: what is set of the allreduce."""

    settings: dict[str, str]
    user_set: dict[str, str]
    removed: Mapping[str, str] = {}
    plan: Communication | None = None


def engine_environment(
    run: Run,
    present: Mapping[str, str],
    controller: Controller = "mpi",
    mpi: Family | None = "openmpi",
    networks: Collection[str] = (),
    *,
    may_copy: bool = True,
    has_adapter: bool = False,
) -> EngineSettings:
    """The engines' environment for `run`, given what is `present` already. NCCL moves the gradients
    between GPUs, `controller` between CPUs. `mpi`: whose MPI Horovod was linked to; None: that is
    not known. `networks`: interfaces of this host. `may_copy`: a rank may read the memory of
    another. `has_adapter`: an adapter of this host reads the memory of ranks. Raises UserError: the
    engine does not offer the algorithm."""
    engine = engine_of(run.system, controller, mpi)
    plan = plan_communication(run, engine)
    algorithm = plan.algorithm.partition("(")[0]
    variables = {
        "OMP_NUM_THREADS": str(run.system.cores_per_rank),
        # Groups are static: Horovod keeps them as they are and answers from its response cache.
        "HOROVOD_DISABLE_GROUP_FUSION": "1",
        "HOROVOD_CYCLE_TIME": f"{run.comm.cycle_ms:g}",
        "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0",
        **SETTINGS[engine.backend],
    }
    if engine.backend == "nccl":
        variables |= _of_gpus(run) | _of_nccl(controller, mpi, networks)
    variables |= engine.offered[algorithm]
    if engine.backend == "mpi":
        variables |= _SHARING.get(mpi, {})
        if mpi == "openmpi" and not may_copy:
            variables |= _WITHOUT_COPIES
    if controller == "mpi" and not _wants_hooks(engine.backend, present, has_adapter):
        variables |= WITHOUT_HOOKS
    if controller == "gloo":
        # Else a rank whose libraries load for 30 s ends the others: the watchdog decides.
        patience_s = max(30.0, run.watchdog.start_s)
        variables["HOROVOD_GLOO_TIMEOUT_SECONDS"] = f"{patience_s:.0f}"
    variables |= _interfaces(run.system.interfaces, controller, mpi, networks, present)
    # The machine's own settings know best what it needs.
    variables |= dict(setting.split("=", 1) for setting in run.system.job.environment)
    settings = {}
    user_set = {}
    for name, value in variables.items():
        if present.get(name, value) == value:
            settings[name] = value
        else:
            user_set[name] = present[name]
    return EngineSettings(settings, user_set, plan=plan)


def _wants_hooks(
    backend: Backend, present: Mapping[str, str], has_adapter: bool
) -> bool:
    """Whether MPI may know when memory is given back: CPUs' gradients stay registered with an
    adapter, or the user wants memory to. It then starts before MXNet loads (connection.py)."""
    is_pinned = any("leave_pinned" in name for name in present)
    return is_pinned or (has_adapter and backend == "mpi")


def _of_gpus(run: Run) -> dict[str, str]:
    """What follows from the config where NCCL reduces."""
    settings = {}
    if run.deterministic:
        settings["MXNET_ENFORCE_DETERMINISM"] = "1"
        # NCCL's own choice on NVSwitch: sums in the switch, in no fixed order.
        settings["NCCL_ALGO"] = "^NVLS,NVLSTree"
    if run.comm.groups == "single":
        settings["MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD"] = "999"
    return settings


def _of_nccl(
    controller: Controller, mpi: Family | None, networks: Collection[str]
) -> dict[str, str]:
    """What NCCL wants of an MPI beside it, and its networks where a host has bridges among others:
    it leaves out none but Docker's. Bridges are named by prefixes, unless another network of this
    host begins so."""
    settings = {}
    if controller == "mpi" and mpi == "openmpi":
        # Without openib is NVIDIA's for this benchmark, against a deadlock of Horovod and NCCL on
        # 96 nodes and more. Without the others is Debian's own choice: MPI, which moves little
        # here, starts in 0.27 s instead of 0.49 s (median, n = 8).
        settings["OMPI_MCA_btl"] = "^uct,openib,ofi"
    usable = [name for name in networks if not _BRIDGE.fullmatch(name)]
    # without any, NCCL would not start
    if {*usable} - {"lo"} and len(usable) < len(networks):
        free = [p for p in _BRIDGES if not any(name.startswith(p) for name in usable)]
        settings["NCCL_SOCKET_IFNAME"] = "^" + ",".join(["docker", "lo", *free])
    return settings


def _interfaces(
    chosen: Sequence[str],
    controller: Controller,
    mpi: Family | None,
    networks: Collection[str],
    present: Mapping[str, str],
) -> dict[str, str]:
    """The networks that the engines may use: those chosen, else for Open MPI all but bridges."""
    is_openmpi = controller == "mpi" and mpi == "openmpi"
    if not chosen:
        bridges = sorted(name for name in networks if _BRIDGE.fullmatch(name))
        if not (is_openmpi and bridges) or "OMPI_MCA_btl_tcp_if_include" in present:
            return {}
        return {
            "OMPI_MCA_btl_tcp_if_exclude": ",".join(["127.0.0.1/8", "sppp", *bridges])
        }
    names = ",".join(chosen)
    settings = {"NCCL_SOCKET_IFNAME": names}
    if controller == "gloo":
        settings["HOROVOD_GLOO_IFACE"] = chosen[0]
    elif is_openmpi:
        settings["OMPI_MCA_btl_tcp_if_include"] = names
        settings["OMPI_MCA_oob_tcp_if_include"] = names
        settings["PRTE_MCA_prte_if_include"] = names  # Open MPI 5
    else:
        settings["HYDRA_IFACE"] = chosen[0]
        settings["FI_TCP_IFACE"] = chosen[0]
    return settings
