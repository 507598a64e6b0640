"""The folder of a job: one start at a time, nothing written over, an exit code in any case."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.launch.job import Request, bind, keep_log, node_folder, run_all
from rn50.launch.job_folder import EXIT_MISSED, OpenJob, open_job
from rn50.launch.system_description import system_id


def start(folder: Path, code: int) -> Path:
    """A start of a job that ends with `code`; its folder."""
    with open_job(folder, log=False) as job:
        assert (job.folder / "exit_code").read_text() == "running\n"
        job.exit_code = code
    return job.folder


def test_a_start_after_an_interruption_goes_on_and_after_the_end_gets_a_folder_of_its_own(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "job"
    assert start(folder, 143) == folder
    (folder / "job.log").write_text("the first\n")
    assert start(folder, 0) == folder
    assert (folder / "exit_code.1").read_text() == "143\n"
    assert (folder / "job.1.log").read_text() == "the first\n"
    assert (folder / "exit_code").read_text() == "0\n"
    assert start(folder, 1) == tmp_path / "job.2"
    assert start(folder, 2) == tmp_path / "job.3"
    assert start(folder, 3) == tmp_path / "job.3"


def test_a_second_start_is_refused_while_the_first_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    expected = rf"{tmp_path}: in use by process {os.getpid()} on \S+, job 7 \("
    with open_job(tmp_path, log=False), pytest.raises(UserError, match=expected):
        start(tmp_path, 0)
    assert not (tmp_path / "exit_code.1").exists()


def run_job(folder: Path, *overrides: str, runs: int = 1) -> int:
    with open_job(folder, log=False) as job:
        run_all(job, Request("smoke", overrides, runs, "mpirun"), lambda _: lambda done, of: None)
    return job.exit_code


def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_job(tmp_path, "batch.per_rank=0") == 2
    assert run_job(tmp_path, "seed=3", runs=5) == 2
    assert run_job(tmp_path, "system.job.stage=/$NOWHERE") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and all(line.startswith("rn50: error: ") for line in lines)
    assert "seed: none for 5 runs (each draws its own) expected, found 3" in lines[1]


def test_runs_that_have_ended_are_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, status in enumerate(("success", "aborted")):
        out = tmp_path / f"run_{number}"
        out.mkdir()
        (out / "config.yaml").write_text(load("smoke", ["seed=1"]).to_yaml())
        (out / "result.json").write_text(json.dumps({"status": status}))
    assert run_job(tmp_path, runs=2) == EXIT_MISSED
    assert capsys.readouterr().out.count("has ended in a start before, is left as it is") == 2


def test_a_kept_log_has_the_page_of_its_machine_beside_it(tmp_path: Path) -> None:
    run = load("smoke", ["seed=1"]).run
    out = tmp_path / "run_0"
    out.mkdir()
    (out / "result_0.txt").write_text("log")
    (out / "environment.json").write_text('{"machine": {"operating_system": "Debian"}}')
    keep_log(OpenJob(tmp_path), run, 0)
    page = json.loads((tmp_path / f"systems/{system_id(run)}.json").read_text())
    assert (page["number_of_nodes"], page["operating_system"]) == ("1", "Debian")
    assert (tmp_path / f"results/{system_id(run)}/resnet/result_0.txt").read_text() == "log"


def test_a_folder_on_the_nodes_may_be_named_by_their_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PBS_LOCALDIR", "/local/7")
    assert node_folder("$PBS_LOCALDIR/a") == "/local/7/a"
    assert node_folder("/scratch/$x y") == "/scratch/$x y"
    with pytest.raises(UserError, match="NOWHERE"):
        node_folder("/$NOWHERE")


def test_ranks_of_a_job_are_bound_as_the_machine_says(root: Path) -> None:
    script = str(root / "scripts/bind.sh")
    for wanted, tokens in (("none", []), ("auto", [script])):
        assert bind(load("smoke", [f"system.job.bind={wanted}"]).run) == tokens
