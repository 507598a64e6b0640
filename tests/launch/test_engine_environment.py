"""What the engines read, and what Horovod would do otherwise than asked."""

import platform
import re
import sys
from typing import Any

import pytest

from rn50.config.load import load
from rn50.config.schema import Run
from rn50.launch.engine_environment import engine_environment
from rn50.launch.host_limits import may_read_others
from tests.conftest import refused
from tests.waiting import output_of

GPUS = ["system=dgxa100", "system.scheduler=local"]
OWN = "system.job.environment=[OMP_NUM_THREADS=5, 'NCCL_IB_HCA==mlx5_0,mlx5_1']"
BACKWARD = "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD"
ONE_NODE = "system.nodes=1"
TWO_NODES = "system.nodes=2"


def run_of(config: str, *overrides: str) -> Run:
    return load(config, [*(GPUS if config == "dgxa100_8" else []), *overrides]).run


@pytest.mark.parametrize(
    ("config", "overrides", "expected"),
    [
        (
            "dgxa100_8",
            (),
            {
                "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD": "999",
                "CUDA_MODULE_LOADING": "LAZY",
                "MXNET_ENFORCE_DETERMINISM": None,
            },
        ),
        (
            "dgxa100_8",
            ("comm.groups=single",),
            {BACKWARD: "999", "CUDA_CACHE_MAXSIZE": "4294967296"},
        ),
        ("dgxa100_8", ("comm.groups=halving(2)",), {BACKWARD: "25"}),
        (
            "smoke",
            ("comm.groups=single", "deterministic=true"),
            {
                BACKWARD: None,
                "CUDA_MODULE_LOADING": None,
                "MXNET_ENFORCE_DETERMINISM": None,
            },
        ),
        (
            "dgxa100_8",
            ("deterministic=true",),
            {"MXNET_ENFORCE_DETERMINISM": "1", "NCCL_ALGO": "^NVLS,NVLSTree"},
        ),
        (
            "dgxa100_8",
            ("deterministic=true", "comm.algorithm=ring"),
            {"NCCL_ALGO": "Ring"},
        ),
        (
            "quick",
            ("comm.algorithm=recursive_doubling",),
            {
                "OMPI_MCA_coll_tuned_allreduce_algorithm": "3",
                "HOROVOD_CPU_OPERATIONS": "MPI",
                "HOROVOD_DISABLE_GROUP_FUSION": "1",
            },
        ),
        ("quick", (OWN,), {"OMP_NUM_THREADS": "5", "NCCL_IB_HCA": "=mlx5_0,mlx5_1"}),
        (
            "abci_2048_open",
            (),
            {"HOROVOD_TORUS_ALLREDUCE": "1", "HOROVOD_CYCLE_TIME": "0.2"},
        ),
        # Fujitsu v0.6, JobScripts/parameters
        (
            "abci_2048_open",
            (),
            {
                "NCCL_BUFFSIZE": "2097152",
                "NCCL_LL_THRESHOLD": "1024",
                "NCCL_MIN_NRINGS": "4",
                "NCCL_MAX_NRINGS": "16",
                "NCCL_NET_GDR_READ": "1",
            },
        ),
    ],
)
def test_what_a_run_sets(
    config: str, overrides: tuple[str, ...], expected: dict[str, str | None]
) -> None:
    settings = engine_environment(run_of(config, *overrides), {}).settings
    assert {name: settings.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("interfaces", "controller", "family", "expected"),
    [
        (
            "[]",
            "mpi",
            "openmpi",
            {"OMPI_MCA_btl_tcp_if_exclude": "127.0.0.1/8,sppp,br-0123456789ab,docker0"},
        ),
        ("[ib0, ib1]", "mpi", "openmpi", {"OMPI_MCA_btl_tcp_if_include": "ib0,ib1"}),
        (
            "[ib0, ib1]",
            "mpi",
            "mpich",
            {"HYDRA_IFACE": "ib0", "NCCL_SOCKET_IFNAME": "ib0,ib1"},
        ),
        (
            "[ib0]",
            "gloo",
            None,
            {"HOROVOD_GLOO_IFACE": "ib0", "HOROVOD_GLOO_TIMEOUT_SECONDS": "300"},
        ),
        # more ranks than cores
        ("[]", "mpi", "mpich", {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1"}),
    ],
)
def test_the_engines_use_the_interfaces_asked_for_and_no_bridge_of_containers(
    interfaces: str, controller: Any, family: Any, expected: dict[str, str]
) -> None:
    run = load("smoke", [f"system.interfaces={interfaces}"]).run
    networks = ["eth0", "docker0", "br-0123456789ab"]
    settings = engine_environment(run, {}, controller, family, networks).settings
    assert settings.items() >= expected.items()
    assert interfaces != "[]" or not re.search("_include|_IFACE", " ".join(settings))
    chosen = {"OMPI_MCA_btl_tcp_if_include": "eth0"}
    with_chosen = engine_environment(run, chosen, controller, family, networks).settings
    assert "_exclude" not in " ".join(with_chosen)  # Open MPI refuses both


@pytest.mark.parametrize(
    ("networks", "interfaces", "expected"),
    [
        (
            ("lo", "eth0", "virbr0"),
            "[]",
            "^docker,lo,podman,cni-podman,virbr,lxcbr,lxdbr,br-",
        ),
        # a bridge of the host's own
        (
            ("br-ex", "br-0123456789ab"),
            "[]",
            "^docker,lo,podman,cni-podman,virbr,lxcbr,lxdbr",
        ),
        (("lo", "eth0"), "[]", None),
        (("lo", "docker0"), "[]", None),  # NCCL would find no network
        (("ib0", "virbr0"), "[ib0]", "ib0"),
    ],
)
def test_nccl_meets_on_no_bridge_of_one_host(
    networks: tuple[str, ...], interfaces: str, expected: str | None
) -> None:
    run = run_of("dgxa100_8", f"system.interfaces={interfaces}")
    settings = engine_environment(run, {}, networks=networks).settings
    assert settings.get("NCCL_SOCKET_IFNAME") == expected
    users = {"NCCL_SOCKET_IFNAME": "eth7", "OMPI_MCA_btl": "tcp,self"}
    assert (
        engine_environment(run, users, networks=networks).kept.items() <= users.items()
    )
    on_cpu = engine_environment(run_of("smoke"), {}, networks=networks).settings
    assert "NCCL_SOCKET_IFNAME" not in on_cpu


@pytest.mark.parametrize(
    ("config", "controller", "family", "expected"),
    [
        ("dgxa100_8", "mpi", "openmpi", "^openib"),
        ("dgxa100_8", "mpi", "mpich", None),
        ("dgxa100_8", "gloo", "openmpi", None),
        ("smoke", "mpi", "openmpi", None),
    ],
)
def test_open_mpi_beside_nccl_has_no_openib(
    config: str, controller: Any, family: Any, expected: str | None
) -> None:
    settings = engine_environment(run_of(config), {}, controller, family).settings
    assert settings.get("OMPI_MCA_btl") == expected


def test_the_users_settings_win_over_the_machines() -> None:
    users = {"NCCL_IB_HCA": "mlx5_2", "HOROVOD_CYCLE_TIME": "7"}
    environment = engine_environment(run_of("quick", OWN), users)
    assert environment.kept == users
    assert not environment.settings.keys() & users


@pytest.mark.parametrize(
    ("config", "overrides", "controller", "mpi", "message"),
    [
        # Horovod would replace these by NCCL's own.
        ("dgxa100_8", ("torus_2d", ONE_NODE), "mpi", None, "two nodes or more"),
        (
            "dgxa100_8",
            ("torus_2d(4x4)", TWO_NODES),
            "mpi",
            None,
            r"torus_2d\(2x8\) on GPUs",
        ),
        ("dgxa100_8", ("hierarchical", TWO_NODES), "gloo", None, "found gloo"),
        (
            "quick",
            ("double_tree",),
            "mpi",
            "openmpi",
            r"Open MPI offers .*found double_",
        ),
        (
            "quick",
            ("segmented_ring",),
            "mpi",
            "mpich",
            "MPICH offers .*found segmented_",
        ),
        ("quick", ("ring",), "mpi", "cray", r"\(auto, torus_2d\), found ring"),
        (
            "quick",
            ("torus_2d", "system.ranks_per_node=3"),
            "mpi",
            "openmpi",
            "found 3 = 1x3",
        ),
        ("quick", ("torus_2d(3x2)",), "mpi", "openmpi", "2 ranks"),
    ],
)
def test_what_would_be_another_algorithm_is_refused(
    config: str, overrides: tuple[str, ...], controller: Any, mpi: Any, message: str
) -> None:
    algorithm, *more = overrides
    run = run_of(config, f"comm.algorithm={algorithm}", *more)
    with refused(f"comm.algorithm: .*{message}"):
        engine_environment(run, {}, controller, mpi)


REFUSING = """
import ctypes, struct
rows = ((0x20, 0, 0, 0), (0x15, 0, 1, 310), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000))
rules = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
program = struct.pack("HxxxxxxQ", len(rows), ctypes.addressof(rules))
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, program) == 0
from rn50.launch.host_limits import may_read_others
print(may_read_others())
"""
"""A process for which seccomp refuses process_vm_readv, as many containers do."""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="its number of a call")
def test_where_a_rank_may_not_read_another_open_mpi_is_told() -> None:
    assert output_of([sys.executable, "-c", REFUSING]) == "False\n"
    assert may_read_others()
    name = "OMPI_MCA_btl_vader_single_copy_mechanism"
    for present, may_copy, expected in (
        ({}, False, "none"),
        ({}, True, None),
        ({name: "xpmem"}, False, None),
    ):
        chosen = engine_environment(load("smoke").run, present, may_copy=may_copy)
        assert chosen.settings.get(name) == expected
