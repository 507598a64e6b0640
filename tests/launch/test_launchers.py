from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.launch.engine_environment import Environment
from rn50.launch.environment_record import PACKAGES, describe_environment, installed_packages
from rn50.launch.launchers import (
    Job,
    build_job,
    gloo_command,
    mpirun_command,
    new_run_folder,
    pick_launcher,
    srun_command,
)
from rn50.launch.run import load_for_launch, result_line
from rn50.train.gpu import Gpu, Gpus

COMMAND = ("python", "-m", "rn50.train", "c.yaml")


def test_mpirun_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    one_node = Job(COMMAND, 2, 2, {"B": "2", "A": "1"})
    assert mpirun_command(one_node) == [
        *("mpirun", "-np", "2", "--oversubscribe", "--bind-to", "none"),
        *("-x", "A", "-x", "B", *COMMAND),
    ]
    monkeypatch.setattr("os.geteuid", lambda: 0)
    many = mpirun_command(Job(COMMAND, 2048, 4, {}))
    assert many[6:] == ["--map-by", "ppr:4:node", "--allow-run-as-root", *COMMAND]


def test_gloo_tokens() -> None:
    tokens = gloo_command(Job(COMMAND, 2, 2, {}))
    assert Path(tokens[0]).name == "horovodrun"
    assert tokens[1:] == ["--gloo", "-np", "2", *COMMAND]


def test_srun_tokens_and_that_an_allocation_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = srun_command(Job(COMMAND, 2048, 4, {"A": "1"}))
    assert tokens[:2] == ["srun", "--mpi=pmix"]
    assert {"--nodes=512", "--ntasks=2048", "--ntasks-per-node=4"} < set(tokens)
    assert "--kill-on-bad-exit=1" in tokens
    assert tokens[-len(COMMAND) :] == list(COMMAND)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert pick_launcher(None) == "mpirun"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert pick_launcher(None) == "srun"
    assert pick_launcher("gloo") == "gloo"
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(UserError, match="srun on the PATH expected"):
        pick_launcher("srun")


def test_what_the_user_has_set_goes_to_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    job, environment = build_job(load("smoke").run, "mpirun", COMMAND)
    assert environment.kept == {"OMP_NUM_THREADS": "7"}
    assert job.environment["OMP_NUM_THREADS"] == "7"
    assert "OMP_NUM_THREADS" in mpirun_command(job)


def test_unknown_launcher_is_refused() -> None:
    with pytest.raises(UserError, match="mpirun, gloo, srun expected, found ssh"):
        pick_launcher("ssh")


def test_without_mpirun_gloo_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert pick_launcher(None) == "gloo"
    with pytest.raises(UserError, match="mpirun on the PATH expected"):
        pick_launcher("mpirun")


def test_a_seed_is_drawn_anew_unless_given() -> None:
    drawn = {load_for_launch("smoke", [], None).run.seed for _ in range(5)}
    assert len(drawn) == 5
    loaded = load_for_launch("smoke", ["seed=4"], 3)
    assert loaded.run.seed == 4
    assert (loaded.run.system.nodes, loaded.run.system.ranks_per_node) == (1, 3)


def test_run_folders_do_not_collide(tmp_path: Path) -> None:
    run = load("smoke", [f"system.results={tmp_path}"]).run
    folders = {new_run_folder(run) for _ in range(3)}
    assert len(folders) == 3
    assert {folder.parent for folder in folders} == {tmp_path / "smoke"}


def test_results_that_cannot_be_written() -> None:
    run = load("smoke", ["system.results=/proc/nowhere"]).run
    with pytest.raises(UserError, match=r"/proc/nowhere.*cannot create"):
        new_run_folder(run)


def test_environment_record_holds_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("HOROVOD_SECRET_KEY", "hunter2")
    monkeypatch.setenv("NCCL_AUTH_TOKEN", "hunter2")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    record = describe_environment(Environment({"A": "1"}, {}), "gloo", COMMAND)
    assert record["variables"] == {"A": "1"}
    assert record["variables_present"]["NCCL_DEBUG"] == "WARN"
    assert record["packages"]["mxnet"] == "1.9.1"
    assert "hunter2" not in json.dumps(record)


def install(folder: Path, packages: dict[str, str]) -> None:
    for name, version in packages.items():
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_the_record_names_the_mxnet_that_is_installed_and_cudas_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mxnet-cu112 is no distribution `mxnet`: null was recorded for it."""
    cuda = {
        "nvidia-cuda-runtime-cu11": "11.8.89",
        "nvidia-cudnn-cu11": "8.9.6.50",
        "nvidia-cublas-cu11": "11.11.3.6",
        "nvidia-nccl-cu11": "2.21.5",
    }
    install(tmp_path, {"mxnet-cu112": "1.9.1", **cuda})
    monkeypatch.syspath_prepend(tmp_path)
    packages = installed_packages()
    assert next(iter(packages)) == "mxnet-cu112"
    assert packages.items() >= {"mxnet-cu112": "1.9.1", **cuda}.items()
    assert "mxnet" not in packages


def test_without_cuda_no_library_of_it_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, {"mxnet": "1.9.1", "numpy": "1.23.5"})
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert installed_packages() == {
        "mxnet": "1.9.1",
        **dict.fromkeys(PACKAGES),
        "numpy": "1.23.5",
    }


def test_gpus_and_driver_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Gpus("535.129.03", (12, 2), (Gpu("NVIDIA A100-SXM4-80GB", (8, 0)),) * 2)
    monkeypatch.setattr("rn50.launch.environment_record.read_gpus", lambda: found)
    record = describe_environment(Environment({}, {}), "mpirun", COMMAND)
    assert record["gpus"] == {
        "driver": "535.129.03",
        "driver_cuda": "12.2",
        "devices": ["NVIDIA A100-SXM4-80GB (8.0)"] * 2,
    }
    monkeypatch.setattr("rn50.launch.environment_record.read_gpus", lambda: None)
    assert describe_environment(Environment({}, {}), "mpirun", COMMAND)["gpus"] is None


def test_the_launchers_controller_decides_what_nccl_may_do() -> None:
    overrides = ["comm.algorithm=hierarchical", "system.nodes=2"]
    run = load("dgxa100_8", overrides).run
    assert build_job(run, "mpirun", COMMAND)[1].settings["HOROVOD_HIERARCHICAL_ALLREDUCE"] == "1"
    with pytest.raises(UserError, match="found gloo"):
        build_job(run, "gloo", COMMAND)


def test_result_line() -> None:
    result = {
        "status": "success",
        "time_to_train_s": 70.4,
        "eval_accuracy": 0.75978,
        "target": 0.759,
        "epochs": 90,
        "ranks": 2048,
        "images_per_s": 1_730_000.0,
        "init_s": 20.4,
        "official_checker": {"verdict": "PASS", "ruleset": "4.0.0"},
    }
    assert result_line(result, Path("results/x/y")) == (
        "RESULT success time_to_train_s=70.400 accuracy=0.7598 target=0.759 epochs=90 ranks=2048 "
        "images_per_s=1730000.0 init_s=20.40 official_checker=PASS(4.0.0) results/x/y"
    )
