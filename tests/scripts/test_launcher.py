from __future__ import annotations

import json
from pathlib import Path

import pytest

from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.scripts.launch import load_for_launch, result_line
from rn50.scripts.launcher import (
    Job,
    build_job,
    gloo_command,
    mpirun_command,
    new_run_folder,
    pick_launcher,
    srun_command,
)
from rn50.scripts.record import describe_environment
from rn50.train.environment import Environment

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
