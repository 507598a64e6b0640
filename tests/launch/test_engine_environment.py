"""What the engines read on GPUs, and what Horovod would do otherwise than asked."""

from __future__ import annotations

import pytest

from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.launch.engine_environment import choose_algorithm, engine_environment

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


def test_no_path_of_libraries_is_set_for_gpu_ranks() -> None:
    """MXNet and Horovod find them by links beside libmxnet.so (scripts/setup_gpu.sh)."""
    settings = engine_environment(load("dgxa100_8", GPUS).run, "nccl", {}).settings
    assert not any("PATH" in name for name in settings)


def test_kernels_that_repeat_are_asked_for_where_a_run_shall() -> None:
    def settings(*overrides: str) -> dict[str, str]:
        return engine_environment(load("dgxa100_8", [*GPUS, *overrides]).run, "nccl", {}).settings

    assert settings("deterministic=true")["MXNET_ENFORCE_DETERMINISM"] == "1"
    assert "MXNET_ENFORCE_DETERMINISM" not in settings()
    on_cpu = load("smoke", ["deterministic=true"]).run
    assert "MXNET_ENFORCE_DETERMINISM" not in engine_environment(on_cpu, "mpi", {}).settings
