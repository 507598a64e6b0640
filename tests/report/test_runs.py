"""`rn50 runs`: by files and locks, while they are written, and whatever lies in the folders."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rn50.cli.main import app
from rn50.config.load import load
from rn50.config.plan import build_plan
from rn50.data.lock import hold
from rn50.launch.run_files import in_brief
from rn50.logging.records import Failure
from rn50.report.runs import Progress, RunRow, read_runs
from rn50.train.checkpoint.file import write_checkpoint
from tests.conftest import write_json, write_metrics
from tests.data.test_lock import left, start_holder
from tests.train.test_checkpoint import arrays, meta
from tests.waiting import read_terminal, wait_until

LOADED = load("smoke", ["seed=1"])
CONFIG = LOADED.to_yaml()
BRIEF = asdict(in_brief(LOADED.run, build_plan(LOADED.run)))
SUCCESS = {
    "status": "success",
    "time_to_train_s": 49.342,
    "eval_accuracy": 0.957,
    "target": 0.9,
    "images_per_s": 266.8,
    "ranks": 2,
    "reason": "target 0.9 reached",
    "official_checker": {"verdict": "PASS"},
    "check": {"verdict": "POLICY"},
}
TRAIN = {"kind": "train", "time_s": 12.5, "step": 25, "epoch": 0.5, "loss": 1.25}
TRAIN |= {"images_per_s": 250.0, "recent_images_per_s": 125.0, "global_batch_size": 20}
EVAL = {"kind": "eval", "time_s": 11.0, "epoch": 1, "step": 20, "accuracy": 0.5}


def make_run(
    folder: Path, result: Any = None, records: tuple[Any, ...] = (TRAIN,)
) -> Path:
    """The folder of a run with a checkpoint."""
    (folder / "checkpoint").mkdir(parents=True)
    write_checkpoint(folder / "checkpoint/step_0000000020.ckpt", meta(), arrays())
    (folder / "config.yaml").write_text(CONFIG)
    write_json(folder / "environment.json", {"run": BRIEF})
    write_metrics(folder, records)
    if result is not None:
        write_json(folder / "result.json", result)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "smoke/20261122T125959Z")


@pytest.fixture
def held(run: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that drives the run."""
    process = start_holder(run / ".lock")
    assert process.stdout.readline() == "held\n"
    yield process
    if process.poll() is None:
        process.kill()
        process.communicate()


def only(folder: Path) -> RunRow:
    (row,) = read_runs([folder])
    return row


RESUMES = {"reason": "why", "next": {"verb": "launch --resume", "folder": "x"}}
STOPS = {"stopped": {"by": "Ctrl-C", "step": 25}}


@pytest.mark.parametrize(
    ("result", "status", "resumable"),
    [
        (SUCCESS, "success", False),
        ({"status": "aborted", "reason": "target 0.9 missed"}, "missed", False),
        ({"status": "aborted", **STOPS, **RESUMES}, "stopped", True),
        ({"status": "failed", **STOPS, **RESUMES}, "stopped", True),
        ({"status": "aborted", **STOPS}, "stopped", True),  # by its rank alone
        ({"status": "failed", **RESUMES}, "failed", True),
        ({"status": "failed", "reason": "training diverged"}, "failed", False),
        (None, "failed", True),
    ],
)
def test_what_became_of_a_run(
    tmp_path: Path, result: Any, status: str, resumable: bool
) -> None:
    row = only(make_run(tmp_path / "r", result, (EVAL, TRAIN)))
    assert (row.status, row.resumable, row.name, row.ranks) == (
        status,
        resumable,
        "smoke",
        2,
    )
    if status != "success":
        assert (row.time_to_train_s, row.elapsed_s, row.eval_accuracy) == (
            None,
            12.5,
            0.5,
        )
        assert (row.target, row.images_per_s) == (0.8, 250.0)
    else:
        assert (row.time_to_train_s, row.eval_accuracy, row.target) == (
            49.342,
            0.957,
            0.9,
        )
        assert row.verdict == "POLICY"
    path = tmp_path / "r/checkpoint/step_0000000020.ckpt"
    path.write_bytes(path.read_bytes()[:100])
    assert not only(tmp_path).resumable


def test_a_rank_says_why_it_failed(run: Path) -> None:
    failure = asdict(Failure(0, "h", "start", 0, "no\nspace"))
    write_json(run / "failure_0.json", failure)
    assert (only(run).status, only(run).reason) == ("failed", "no\\nspace")


def test_a_run_is_followed_while_it_is_written(
    run: Path, held: subprocess.Popen[str]
) -> None:
    row = only(run)
    assert (row.status, row.resumable, row.started) == (
        "running",
        False,
        "2026-11-22T12:59:59Z",
    )
    assert row.progress is not None
    # 1,000 images on two ranks of 10: 50 steps an epoch; the 8th is evaluated last.
    assert row.progress == Progress(25, 400, 0.5, 8, 1.25, 375 * 20 / 125)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(EVAL) + "\n" + json.dumps(TRAIN | {"step": 30}) + "\n")
        file.write('{"kind": "train", "step": 35, "epo')  # being written
        file.flush()
        row = only(run)
        assert row.progress is not None
        assert row.progress.step == 30
        assert row.eval_accuracy == 0.5
    held.kill()
    held.communicate()
    os.utime(run / ".lock", (0, 0))
    row = only(run)
    assert (run / ".lock").exists()
    assert (row.status, row.resumable, row.progress) == ("killed", True, None)


def test_a_run_lives_as_long_as_the_lock_of_its_rank_is_written(run: Path) -> None:
    rank_lock = left(run / ".rank_0.lock")
    assert only(run).status == "killed"
    os.utime(rank_lock)
    assert only(run).status == "running"


def test_runs_of_jobs_and_sweeps_are_found_and_links_are_not(tmp_path: Path) -> None:
    results = tmp_path / "results"
    plain = make_run(results / "smoke/20261122T125959Z", SUCCESS)
    job = results / "smoke/20261123T000000Z"
    of_job = [make_run(job / f"run_{n}", SUCCESS) for n in range(2)]
    (job / "job.sh").write_text("")
    (job / "submission.json").write_text('{"scheduler": "slurm", "job": "42"}')
    trial = make_run(
        results / "search/trial_0000/smoke/20261121T000000Z/run_0", SUCCESS
    )
    (trial.parent / "exit_code").write_text("0\n")
    (results / "search/trial_0000/config.yaml").write_text(CONFIG)
    (results / "search/.lock").write_text("")
    make_run(plain / "attempt_1", SUCCESS)  # of a run: no run of its own
    (results / "again").symlink_to(plain)
    (results / "round").symlink_to(results)
    rows = read_runs([results, plain])
    assert [row.folder for row in rows] == [*reversed(of_job), plain, trial]
    assert [row.job for row in rows] == ["42", "42", None, None]
    assert [row.job_folder for row in rows] == [job, job, None, trial.parent]
    (plain / "job.sh").write_text("")  # a job has taken it up
    assert only(plain).job_folder == plain


def test_the_end_of_a_long_log_is_enough(run: Path) -> None:
    """A gigabyte of it is not read: it would take seconds of CPU time."""
    with (run / "metrics.jsonl").open("r+b") as file:
        file.truncate(1 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + json.dumps(EVAL | {"accuracy": 0.75}).encode() + b"\n")
    assert only(run).eval_accuracy == 0.75


# --- the command --------------------------------------------------------------------------------


def listed(*arguments: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, ["runs", "--json", *arguments])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_filters(tmp_path: Path) -> None:
    for day in range(1, 6):
        result = SUCCESS if day % 2 else {"status": "failed", "reason": "rank 1 failed"}
        run = make_run(tmp_path / f"a/2026110{day}T000000Z", result)
        if day == 5:
            about = {"run": BRIEF | {"name": "mine"}}
            write_json(run / "environment.json", about)
    top = str(tmp_path)
    assert [row["started"][8:10] for row in listed(top)] == [
        "05",
        "04",
        "03",
        "02",
        "01",
    ]
    assert [row["started"][8:10] for row in listed(top, "--newest", "2")] == [
        "05",
        "04",
    ]
    assert [row["name"] for row in listed(top, "--name", "mi*")] == ["mine"]
    assert len(listed(top, "--status", "failed", "--newest", "1")) == 1
    assert len(listed(top, "--status", "failed", "--status", "success")) == 5
    assert listed(str(tmp_path / "a/20261103T000000Z"))[0]["time_to_train_s"] == 49.342
    for wrong in (
        ["--status", "done"],
        [str(tmp_path / "nothing")],
        ["--watch", "--json"],
    ):
        assert CliRunner().invoke(app, ["runs", *wrong]).exit_code != 0
    done = CliRunner().invoke(app, ["runs", str(tmp_path), "--status", "queued"])
    assert done.exit_code == 0
    assert done.stderr == f"no runs below {tmp_path}\n"


def test_a_job_goes_on_between_two_runs_and_in_its_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Any
) -> None:
    """--watch ended where the first of five runs did, and after `submit --resume`."""
    job = tmp_path / "results/smoke/20261123T000000Z"
    make_run(job / "run_0", SUCCESS)
    (job / "job.sh").write_text("")
    (job / "submission.json").write_text('{"scheduler": "slurm", "job": "42"}')

    def statuses() -> list[str]:
        return [row["status"] for row in listed(str(job.parents[1]))]

    for answer, expected in (
        ("echo RUNNING", ["queued", "success"]),
        ("", ["success"]),
    ):
        program("squeue", answer)
        assert statuses() == expected
    with hold(job / ".job.lock"):
        assert statuses() == ["running", "success"]
    program("squeue", "echo RUNNING")
    (job / "exit_code").write_text("0\n")  # its last words
    assert statuses() == ["success"]
    make_run(job / "run_1", {"status": "failed", **STOPS, **RESUMES})
    (job / "exit_code").unlink()  # submitted again
    assert statuses() == ["queued", "stopped", "success"]
    (job / "run_0").rename(tmp_path / "run_0")
    (job / "run_1").rename(tmp_path / "run_1")
    assert statuses() == ["queued"]
    program("squeue", "echo PENDING Priority")
    assert listed(str(job.parents[1]))[0]["reason"] == "slurm job 42 waits: Priority"
    monkeypatch.setenv("COLUMNS", "120")
    table = CliRunner().invoke(app, ["runs", str(job.parents[1])]).stdout
    assert "waits: Priority" in table
    program("squeue", "echo no configuration source >&2; exit 1")
    assert statuses() == ["unknown"]  # which does not keep --watch from ending
    program("squeue", "")  # cancelled before it began
    assert statuses() == ["cancelled"]


@pytest.mark.parametrize("columns", [80, 50])
def test_a_narrow_terminal_keeps_folders_whole(run: Path, columns: int) -> None:
    for number in range(3):
        make_run(run.with_name("20261121T000000Z") / f"run_{number}", SUCCESS)
    command = [Path(sys.executable).with_name("rn50"), "runs", str(run.parents[1])]
    leader, follower = pty.openpty()
    environment = os.environ | {"COLUMNS": str(columns), "TERM": "xterm"}
    subprocess.run(
        command,
        stdout=follower,
        env=environment,
        check=True,
    )
    os.close(follower)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", read_terminal(leader))
    lines = shown.splitlines()
    assert max(map(len, lines)) <= columns
    assert ("top-1" in lines[0], "images/s" in lines[0]) == (columns == 80, False)
    for number in range(3):
        assert (
            len(
                [one for one in lines if f"smoke/20261121T000000Z/run_{number} " in one]
            )
            == 1
        )
    assert len(lines) == len(read_runs([run.parents[1]])) + 1


def test_live(run: Path, held: subprocess.Popen[str]) -> None:
    make_run(run.with_name("20261121T000000Z"), SUCCESS)
    command = [
        Path(sys.executable).with_name("rn50"),
        "runs",
        "--watch",
        str(run.parents[1]),
    ]
    leader, follower = pty.openpty()
    environment = os.environ | {"COLUMNS": "120", "LINES": "24", "TERM": "xterm"}
    process = subprocess.Popen(
        command,
        stdout=follower,
        env=environment,
    )
    os.close(follower)
    os.set_blocking(leader, False)
    shown = b""

    def text() -> str:
        nonlocal shown
        with suppress(OSError):
            shown += os.read(leader, 1 << 16)
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode(errors="replace"))

    wait_until(lambda: "0.50/" in text(), 30)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(EVAL) + "\n")
        file.write(json.dumps(TRAIN | {"step": 150, "epoch": 3.0}) + "\n")
    wait_until(lambda: "3.00/" in text() and "0.5000" in text(), 30)
    write_json(run / "result.json", SUCCESS | {"eval_accuracy": 0.9125})
    held.communicate("")  # the driver ends
    wait_until(lambda: (text(), process.poll())[1] is not None, 30)
    lines = text().replace("\r", "\n").splitlines()
    os.close(leader)
    assert process.returncode == 0
    assert max(map(len, lines)) <= 120
    assert any("0.9125" in line and "success" in line for line in lines)
