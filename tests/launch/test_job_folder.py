"""The folder of a job: one start at a time, nothing written over, an exit code in any case."""

import os
import sys
from pathlib import Path

import pytest

from rn50.cli.console import track
from rn50.config.load import load
from rn50.host.exit_codes import EXIT_BAD
from rn50.launch.ending import RunError, rank_failed
from rn50.launch.job import Request, keep_log, node_folder, run_all
from rn50.launch.job_folder import OpenJob, open_job
from rn50.launch.job_script import ROOT
from rn50.launch.launch_plan import LaunchPlan, rank_program
from rn50.launch.system_description import system_id
from rn50.logging.records import Failure, write
from tests.conftest import read_json, refused, write_file, write_json


def start(folder: Path, code: int) -> None:
    """A start of a job that ends with `code`."""
    with open_job(folder, log=False) as job:
        assert (folder / "exit_code").read_text() == "running\n"
        job.code = code


def test_a_second_start_keeps_what_the_first_left(tmp_path: Path) -> None:
    start(tmp_path, 143)
    (tmp_path / "job.log").write_text("the first\n")
    start(tmp_path, 0)
    assert (tmp_path / "exit_code.1").read_text() == "143\n"
    assert (tmp_path / "job.1.log").read_text() == "the first\n"
    assert (tmp_path / "exit_code").read_text() == "0\n"


def test_a_second_start_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    expected = rf"{tmp_path}: in use by process {os.getpid()} on \S+ \("
    with open_job(tmp_path, log=False), refused(expected):
        start(tmp_path, 0)
    assert not (tmp_path / "exit_code.1").exists()


def run_job(folder: Path, *overrides: str, runs: int = 1) -> int:
    request = Request("smoke", overrides, runs, "mpirun")
    with open_job(folder, log=False) as job:
        run_all(job, request, track)
    return job.code


def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_job(tmp_path, "batch.per_rank=0") == 2
    assert run_job(tmp_path, "seed=3", runs=5) == 2
    assert run_job(tmp_path, "system.job.stage=/$NOWHERE") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("rn50: error: ") for line in lines)
    assert "seed: none for 5 runs (each draws its own) expected, found 3" in lines[1]


def test_runs_that_have_ended_are_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load("smoke", ["seed=1"]).to_yaml()
    for number, status in enumerate(("success", "aborted")):
        out = tmp_path / f"run_{number}"
        write_file(out / "config.yaml", config)
        write_json(out / "result.json", {"status": status})
    assert run_job(tmp_path, runs=2) == EXIT_BAD
    assert capsys.readouterr().out.count("has ended in a start before") == 2


@pytest.mark.parametrize(
    ("retryable", "begun_runs", "code"), [(False, 2, 1), (True, 1, 3)]
)
def test_a_run_that_would_fail_again_leaves_the_others_their_turn(
    retryable: bool,
    begun_runs: int,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failure = Failure(0, "h", "epoch 1", 7, "no number", retryable)

    def fails(plan: LaunchPlan, _: object) -> None:
        out = plan.options.out
        assert out is not None
        write(out / failure.file_name, failure)
        raise RunError("no number", rank_failed("no number", out))

    monkeypatch.setattr("rn50.launch.job.run_plan", fails)
    assert run_job(tmp_path, runs=2) == code
    assert len(list(tmp_path.glob("run_*"))) == begun_runs


def test_a_run_in_a_container_is_judged_by_the_libraries_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[LaunchPlan] = []

    def stopped(plan: LaunchPlan, _: object) -> None:
        plans.append(plan)
        raise KeyboardInterrupt

    monkeypatch.setattr("rn50.launch.job.run_plan", stopped)
    run_job(tmp_path, "system.job.container=image")
    (plan,) = plans
    assert "--container-image=image" in plan.job_in("out").command


def test_a_kept_log_has_the_page_of_its_machine_beside_it(tmp_path: Path) -> None:
    run = load("smoke", ["seed=1"]).run
    out = tmp_path / "run_0"
    write_file(out / "result_0.txt", "log")
    (out / "environment.json").write_text('{"machine": {"operating_system": "Debian"}}')
    keep_log(OpenJob(tmp_path), run, 0)
    system = system_id(run)
    page = read_json(tmp_path / f"systems/{system}.json")
    assert page["number_of_nodes"] == "1"
    assert page["operating_system"] == "Debian"
    kept_log = tmp_path / f"results/{system}/resnet/result_0.txt"
    assert kept_log.read_text() == "log"


def test_a_folder_on_the_nodes_may_be_named_by_their_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PBS_LOCALDIR", "/local/7")
    assert node_folder("$PBS_LOCALDIR/a b") == "/local/7/a b"
    with refused("NOWHERE"):
        node_folder("/$NOWHERE")


HERE = str(Path.cwd())
HOME = "/opt/rn50"
IN_IMAGE = [
    "env",
    f"PYTHONPATH={HOME}",
    f"{HOME}/scripts/bind.sh",
    f"{HOME}/.venv/bin/python",
]
SINGULARITY = [
    "singularity",
    "exec",
    "--bind",
    f"{HERE}:{HERE}",
    "--bind",
    "/raid:/raid:ro",
]


@pytest.mark.parametrize(
    ("job", "tokens"),
    [
        (["bind=none"], [sys.executable]),
        ([], [f"{ROOT}/scripts/bind.sh", sys.executable]),
        (
            ["container=a b"],
            ["--container-image=a b", "--container-name=rn50",
             f"--container-mounts={HERE}:{HERE},/raid:/raid:ro", f"--container-workdir={HERE}",
             *IN_IMAGE],
        ),
        (
            ["container=$x", "engine=singularity", "stage=/scratch"],
            [*SINGULARITY, "--bind", "/scratch/rn50_data:/scratch/rn50_data", "--pwd", HERE, "$x",
             *IN_IMAGE],
        ),
    ],
)  # fmt: skip
def test_what_a_rank_is_started_with(job: list[str], tokens: list[str]) -> None:
    """A list of words, which no shell reads."""
    overrides = ["mounts=[/raid:/raid:ro]", "home=/opt/rn50", *job]
    settings = [f"system.job.{setting}" for setting in overrides]
    run = load("smoke", [*settings, "data.path=/scratch/rn50_data"]).run
    assert rank_program(run, in_job=True) == [*tokens, "-m", "rn50.train"]
