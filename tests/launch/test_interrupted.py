"""Which job `rn50 submit --resume` goes on with, and which it refuses."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.launch.resume import latest_interrupted
from rn50.launch.submit import Last, find_interrupted
from rn50.train import checkpoint
from tests.train.test_checkpoint import CONFIG, arrays, meta


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interrupted job of five runs, whose id Slurm does not know any more."""
    run = tmp_path / "job/run_0"
    (run / "checkpoint").mkdir(parents=True)
    checkpoint.write(run / "checkpoint" / checkpoint.file_name(7), meta(), arrays())
    (run / "config.yaml").write_text(load(*CONFIG).to_yaml())
    (run / "environment.json").write_text("{}")
    (run.parent / "config.yaml").write_text(load(CONFIG[0]).to_yaml())
    (run.parent / "submission.json").write_text('{"scheduler": "slurm", "job": "42", "runs": 5}')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    queue_says(tmp_path, "slurm_load_jobs error: Invalid job id specified")
    return run.parent


def queue_says(folder: Path, text: str) -> None:
    (folder / "squeue").write_text(f"#!/bin/sh\necho '{text}'\n")
    (folder / "squeue").chmod(0o755)


def test_a_job_is_found_by_its_folder_and_by_that_of_its_run(job: Path) -> None:
    for folder in (job, job / "run_0"):
        loaded, last = find_interrupted(str(folder), None, ["system.job.walltime='02:00:00'"])
        assert last == Last(job, "slurm", 5)
        assert loaded.run.system.job.walltime == "02:00:00"


def test_the_latest_job_needs_no_checkpoint(job: Path) -> None:
    (job.parent / "smoke").mkdir()
    top = job.rename(job.parent / "smoke/2026")
    results = [f"system.results={job.parent}"]
    assert find_interrupted("latest", "smoke", results)[1].folder == top
    shutil.rmtree(top / "run_0/checkpoint")
    assert find_interrupted("latest", None, results)[1].folder == top
    with pytest.raises(UserError, match="an interrupted run with a checkpoint"):
        latest_interrupted(None, results)


def test_a_run_is_found_where_no_job_is_around_it(job: Path) -> None:
    (job / "config.yaml").unlink()
    assert find_interrupted(str(job / "run_0"), None, [])[1] == Last(job / "run_0", None, 1)


@pytest.mark.parametrize("told", [{"scheduler": ["x"], "job": 1, "runs": True}, [], {"runs": 0.5}])
def test_what_a_stranger_wrote_of_the_submission_is_no_more_than_unknown(
    job: Path, told: object
) -> None:
    (job / "submission.json").write_text(json.dumps(told))
    assert find_interrupted(str(job), None, [])[1] == Last(job, None, 1)


def test_what_cannot_go_on_is_refused(job: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no CONFIG beside a folder expected, found smoke"):
        find_interrupted(str(job), "smoke", [])
    with pytest.raises(UserError, match=r"optimizer\.base_lr"):
        find_interrupted(str(job), None, ["optimizer.base_lr=7"])
    with pytest.raises(UserError, match=r"the folder of a job or of a run expected, found no .*/x"):
        find_interrupted(str(tmp_path / "x"), None, [])
    queue_says(tmp_path, "PENDING")
    with pytest.raises(UserError, match=r"found slurm job 42 in its queue .*: scancel 42"):
        find_interrupted(str(job), None, [])
    queue_says(tmp_path, "")
    (job / "exit_code").write_text("1\n")
    with pytest.raises(UserError, match=r"job or run expected, .* has ended"):
        find_interrupted(str(job), None, [])
