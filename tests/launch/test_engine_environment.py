"""What the engines read, and what Horovod would do otherwise than asked."""

from __future__ import annotations

import pytest

from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.launch.engine_environment import (
    ALGORITHMS,
    choose_algorithm,
    engine_environment,
    torus_grid,
)
from rn50.train.mpi_library import PRODUCTS, Family

GPUS = ["system=dgxa100", "system.scheduler=local"]


@pytest.mark.parametrize("algorithm", ["torus_2d", "hierarchical"])
def test_what_horovod_ignores_on_one_node_is_refused(algorithm: str) -> None:
    overrides = [*GPUS, f"comm.algorithm={algorithm}"]
    with pytest.raises(UserError) as caught:
        engine_environment(load("dgxa100_8", [*overrides, "system.nodes=1"]).run, "nccl", {})
    assert str(caught.value) == (
        f"comm.algorithm: two nodes or more expected for {algorithm} on nccl, found 1"
    )
    engine_environment(load("dgxa100_8", [*overrides, "system.nodes=2"]).run, "nccl", {})


def test_hierarchical_needs_mpi_and_the_torus_does_not() -> None:
    runs = {
        name: load("dgxa100_8", [*GPUS, f"comm.algorithm={name}", "system.nodes=2"]).run
        for name in ("hierarchical", "torus_2d")
    }
    with pytest.raises(UserError, match=r"mpirun, srun\) expected for hierarchical.*found gloo"):
        engine_environment(runs["hierarchical"], "nccl", {}, "gloo")
    engine_environment(runs["hierarchical"], "nccl", {}, "mpi")
    engine_environment(runs["torus_2d"], "nccl", {}, "gloo")


@pytest.mark.parametrize("nodes", [1, 2, 16, 128, 512])
@pytest.mark.parametrize("system", ["abci", "dgxa100", "dgx1"])
def test_auto_never_chooses_what_is_refused(
    system: str, nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [f"system={system}", f"system.nodes={nodes}", "comm.algorithm=auto"]
    run = load("abci_2048_open", overrides).run
    for controller in ("mpi", "gloo"):
        engine_environment(run, "nccl", {}, controller)
    # Also where the model finds nothing cheaper than the hierarchical one.
    monkeypatch.setattr(
        "rn50.launch.engine_environment.group_cost_s",
        lambda _, __, ___, name: ([], {"hierarchical": 1.0, "torus_2d": 2.0}.get(name, 9.0)),
    )
    several = nodes > 1
    assert choose_algorithm(run, "nccl").name == ("hierarchical" if several else "auto")
    assert choose_algorithm(run, "nccl", "gloo").name == ("torus_2d" if several else "auto")


def test_gpu_ranks_get_nvidias_bulk_sizes_and_lazy_kernels() -> None:
    settings = engine_environment(load("dgxa100_8", GPUS).run, "nccl", {}).settings
    assert settings["MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD"] == "999"
    assert settings["MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD"] == "25"
    assert settings["CUDA_MODULE_LOADING"] == "LAZY"
    on_cpus = engine_environment(load("smoke").run, "mpi", {}).settings
    assert not any(name.startswith(("MXNET_EXEC", "CUDA")) for name in on_cpus)


def test_kernels_that_repeat_are_asked_for_where_a_run_shall() -> None:
    def settings(*overrides: str) -> dict[str, str]:
        return engine_environment(load("dgxa100_8", [*GPUS, *overrides]).run, "nccl", {}).settings

    assert settings("deterministic=true")["MXNET_ENFORCE_DETERMINISM"] == "1"
    assert "MXNET_ENFORCE_DETERMINISM" not in settings()
    on_cpu = load("smoke", ["deterministic=true"]).run
    assert "MXNET_ENFORCE_DETERMINISM" not in engine_environment(on_cpu, "mpi", {}).settings


@pytest.mark.parametrize(
    ("engine", "algorithm"),
    [(engine, algorithm) for engine, offered in ALGORITHMS.items() for algorithm in offered],
)
def test_every_algorithm_of_the_table_is_set(engine: str, algorithm: str) -> None:
    shape = ["system.nodes=2", "system.ranks_per_node=2"]
    run = load("quick", [f"comm.algorithm={algorithm}", *shape]).run
    backend = engine if engine in ("gloo", "nccl") else "mpi"
    family = engine if engine in PRODUCTS else None
    settings = engine_environment(run, backend, {}, mpi=family).settings
    assert settings.items() >= ALGORITHMS[engine][algorithm].items()
    assert settings["HOROVOD_DISABLE_GROUP_FUSION"] == "1"


def test_every_mpi_has_its_table() -> None:
    assert set(ALGORITHMS) == {*PRODUCTS, "mpi", "gloo", "nccl"}


@pytest.mark.parametrize(
    ("mpi", "algorithm", "words"),
    [
        ("openmpi", "double_tree", r"Open MPI offers expected \(auto, rec.*found double_tree"),
        ("mpich", "segmented_ring", r"MPICH offers expected \(auto, rec.*found segmented_ring"),
        ("cray", "ring", r"Cray MPICH offers expected \(auto, torus_2d\), found ring"),
        (None, "ring", r"mpi offers expected \(auto, torus_2d\), found ring"),
    ],
)
def test_what_the_backend_lacks_is_refused_by_name(
    mpi: Family | None, algorithm: str, words: str
) -> None:
    run = load("quick", [f"comm.algorithm={algorithm}"]).run
    with pytest.raises(UserError, match="comm.algorithm: one that " + words):
        engine_environment(run, "mpi", {}, mpi=mpi)


@pytest.mark.parametrize("mpi", [*PRODUCTS, None])
def test_no_mpi_is_told_what_another_reads(mpi: Family | None) -> None:
    settings = engine_environment(load("quick").run, "mpi", {}, mpi=mpi).settings
    foreign = {"OMPI_MCA_", "MPIR_CVAR_", "I_MPI_", "MV2_"} - {
        {"openmpi": "OMPI_MCA_", "spectrum": "OMPI_MCA_", "mpich": "MPIR_CVAR_"}.get(mpi or ""),
        {"intel": "I_MPI_", "mvapich": "MV2_"}.get(mpi or ""),
    }
    assert not [name for name in settings if name.startswith(tuple(foreign))]


@pytest.mark.parametrize(
    ("algorithm", "ranks", "found"),
    [
        ("torus_2d", 2, "2 = 1x2"),
        ("torus_2d", 3, "3 = 1x3"),
        ("torus_2d", 7, "7 = 1x7"),
        ("torus_2d(8x1)", 8, "8 = 8x1"),
        ("torus_2d(2x3)", 8, "grid of 8 ranks"),
    ],
)
def test_a_torus_without_a_grid_is_refused(algorithm: str, ranks: int, found: str) -> None:
    overrides = [f"comm.algorithm={algorithm}", f"system.ranks_per_node={ranks}"]
    with pytest.raises(UserError, match=found):
        engine_environment(load("quick", overrides).run, "mpi", {})


@pytest.mark.parametrize(
    ("algorithm", "ranks", "rows_and_columns"),
    [
        ("torus_2d", 4, (2, 2)),
        ("torus_2d", 8, (2, 4)),
        ("torus_2d(4x2)", 8, (4, 2)),
        # Sony's, Table 4, vertical x horizontal
        ("torus_2d", 1024, (32, 32)),
        ("torus_2d", 2048, (32, 64)),
        ("torus_2d", 2176, (34, 64)),
        ("torus_2d(48x72)", 3456, (48, 72)),
        ("torus_2d", 4096, (64, 64)),
    ],
)
def test_the_grid_of_a_torus(algorithm: str, ranks: int, rows_and_columns: tuple[int, int]) -> None:
    assert torus_grid(algorithm, ranks) == rows_and_columns


def test_the_machines_own_settings_win_over_ours_and_the_users_over_both() -> None:
    own = "system.job.environment=[OMP_NUM_THREADS=5, 'NCCL_IB_HCA==mlx5_0,mlx5_1']"
    run = load("quick", [own]).run
    settings = engine_environment(run, "mpi", {}).settings
    assert settings["OMP_NUM_THREADS"] == "5"
    assert settings["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1"
    users = {"NCCL_IB_HCA": "mlx5_2", "HOROVOD_CYCLE_TIME": "7"}
    environment = engine_environment(run, "mpi", users)
    assert environment.kept == users
    assert not environment.settings.keys() & users


@pytest.mark.parametrize(
    ("latency_s", "bytes_per_s", "expected"), [(0.005, 25e6, 500_000), (1e-6, 1e9, 65_536)]
)
def test_send_buffers_hold_two_round_trips(latency_s, bytes_per_s, expected) -> None:
    overrides = [f"system.link_latency_s={latency_s}", f"system.link_bytes_per_s={bytes_per_s}"]
    settings = engine_environment(load("smoke", overrides).run, "mpi", {}).settings
    assert settings["OMPI_MCA_btl_tcp_sndbuf"] == str(expected)
    assert (
        "OMPI_MCA_btl_tcp_sndbuf" not in engine_environment(load("smoke").run, "mpi", {}).settings
    )
