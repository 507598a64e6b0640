"""`rn50 runs`: by files and locks, while they are written, and whatever lies in the folders."""

import json
import os
import pty
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from rn50.config.load import load
from rn50.config.plan import build_plan
from rn50.host.lock import hold
from rn50.launch.run_files import in_brief
from rn50.logging.records import Failure
from rn50.report.runs import Progress, RunRow, read_runs
from rn50.train.checkpoint.file import write_checkpoint
from tests.conftest import PROGRAM, invoke, write_json, write_metrics
from tests.host.test_lock import left, start_holder
from tests.train.saved import arrays, meta
from tests.waiting import read_terminal, wait_until

LOADED = load("smoke", ["seed=1"])
CONFIG = LOADED.to_yaml()
PLAN = build_plan(LOADED.run)
BRIEF = asdict(in_brief(LOADED.run, PLAN))
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
TRAIN = {
    "kind": "train",
    "time_s": 12.5,
    "step": 25,
    "epoch": 0.5,
    "loss": 1.25,
    "images_per_s": 250.0,
    "recent_images_per_s": 125.0,
    "global_batch_size": 20,
}
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


def make_job(folder: Path) -> Path:
    """The folder of a job in a queue."""
    write_json(folder / "submission.json", {"scheduler": "slurm", "job": "42"})
    (folder / "job.sh").touch()
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "smoke/20261122T125959Z")


@pytest.fixture
def driver(run: Path) -> Iterator[subprocess.Popen[str]]:
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


NEXT = {"verb": "launch --resume", "folder": "x"}
RESUMES = {"reason": "why", "next": NEXT}
STOPS = {"stopped": {"by": "Ctrl-C", "step": 25}}
STOPPED = {"status": "failed", **STOPS, **RESUMES}
MISSED = {"status": "aborted", "reason": "target 0.9 missed"}
DIVERGED = {"status": "failed", "reason": "training diverged"}


@pytest.mark.parametrize(
    ("result", "status", "resumable"),
    [
        (SUCCESS, "success", False),
        (MISSED, "missed", False),
        (STOPPED, "stopped", True),
        ({"status": "aborted", **STOPS}, "stopped", True),  # by its rank alone
        ({"status": "failed", **RESUMES}, "failed", True),
        (DIVERGED, "failed", False),
        (None, "failed", True),
    ],
)
def test_what_became_of_a_run(
    tmp_path: Path, result: Any, status: str, resumable: bool
) -> None:
    run = make_run(tmp_path / "r", result, (EVAL, TRAIN))
    row = only(run)
    expected = RunRow(
        folder=run,
        status=status,
        name="smoke",
        started=None,
        elapsed_s=12.5,
        eval_accuracy=0.5,
        target=0.8,
        ranks=2,
        resumable=resumable,
        reason=row.reason,
    )
    if status == "success":
        expected = expected._replace(
            time_to_train_s=49.342,
            elapsed_s=49.342,
            eval_accuracy=0.957,
            target=0.9,
            images_per_s=266.8,
            verdict="POLICY",
        )
    assert row == expected
    (run / "checkpoint/step_0000000020.ckpt").write_bytes(b"torn")
    assert not only(tmp_path).resumable


def test_a_rank_says_why_it_failed(run: Path) -> None:
    failure = Failure(0, "h", "start", 0, "no\nspace")
    write_json(run / "failure_0.json", asdict(failure))
    row = only(run)
    assert row.status == "failed"
    assert row.reason == "no\\nspace"


def test_a_run_is_followed_while_it_is_written(
    run: Path, driver: subprocess.Popen[str]
) -> None:
    row = only(run)
    assert row.status == "running"
    assert not row.resumable
    assert row.started == "2026-11-22T12:59:59Z"
    assert row.images_per_s == 125.0
    # 1,000 images on two ranks of 10: 50 steps an epoch; the 8th is evaluated last.
    assert row.progress == Progress(
        step=25,
        steps=400,
        epoch=0.5,
        epochs=8,
        loss=1.25,
        images_per_s=125,
        left_s=375 * 20 / 125,
    )
    later = TRAIN | {"step": 30}
    write_metrics(run, [TRAIN, EVAL, later])
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 35, "epo')  # being written
    row = only(run)
    assert row.eval_accuracy == 0.5
    assert row.progress is not None
    assert row.progress.step == 30
    driver.kill()
    driver.communicate()
    os.utime(run / ".lock", (0, 0))
    row = only(run)
    assert (run / ".lock").exists()
    assert row.status == "killed"
    assert row.resumable
    assert row.progress is None


def test_a_run_lives_as_long_as_the_lock_of_its_rank_is_written(run: Path) -> None:
    rank_lock = left(run / ".rank_0.lock")
    assert only(run).status == "killed"
    os.utime(rank_lock)
    assert only(run).status == "running"


def test_runs_of_jobs_and_sweeps_are_found_and_links_are_not(tmp_path: Path) -> None:
    results = tmp_path / "results"
    plain = make_run(results / "smoke/20261122T125959Z")
    job = make_job(results / "smoke/20261123T000000Z")
    of_job = [make_run(job / f"run_{n}") for n in range(2)]
    search = results / "search"
    trial = search / "trial_0000"
    of_trial = make_run(trial / "smoke/20261121T000000Z/run_0")
    (of_trial.parent / "exit_code").write_text("0\n")
    (trial / "config.yaml").write_text(CONFIG)
    (search / ".lock").write_text("")
    make_run(plain / "attempt_1")  # of a run: no run of its own
    (results / "again").symlink_to(plain)
    (results / "round").symlink_to(results)
    rows = read_runs([results, plain])
    identities = [(row.folder, row.job, row.job_folder) for row in rows]
    assert identities == [
        (of_job[1], "42", job),
        (of_job[0], "42", job),
        (plain, None, None),
        (of_trial, None, of_trial.parent),
    ]
    (results / "job.sh").write_text("")  # the user's own
    assert read_runs([results, plain]) == rows
    (plain / "job.sh").write_text("")  # a job has taken it up
    assert only(plain).job_folder == plain


def test_the_end_of_a_long_log_is_enough(run: Path) -> None:
    """A gigabyte of it is not read: it would take seconds of CPU time."""
    file = run / "metrics.jsonl"
    os.truncate(file, 1 << 30)
    with file.open("a") as end:
        end.write(f"\n{json.dumps(EVAL)}\n")
    assert only(run).eval_accuracy == 0.5


# --- the command --------------------------------------------------------------------------------


def listed(*arguments: str) -> list[dict[str, Any]]:
    done = invoke("runs", "--json", *arguments)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_filters(tmp_path: Path) -> None:
    for day, result in enumerate((SUCCESS, STOPPED, SUCCESS)):
        run = make_run(tmp_path / f"a/2026110{day}T000000Z", result)
    renamed = BRIEF | {"name": "mine"}
    write_json(run / "environment.json", {"run": renamed})

    def days(*options: str) -> str:
        rows = listed(str(tmp_path), *options)
        started = [row["started"] for row in rows]
        return "".join(stamp[9] for stamp in started)

    assert days() == "210"
    assert days("--newest", "2") == "21"
    assert days("--name", "mi*") == "2"
    assert days("--status", "success", "--newest", "1") == "2"
    assert days("--status", "success", "--status", "stopped") == "210"
    (row,) = listed(str(run))
    assert row["time_to_train_s"] == 49.342
    for wrong in ("--status=done", f"{run}/nothing", "--watch --json"):
        assert invoke("runs", *wrong.split()).exit_code != 0
    done = invoke("runs", tmp_path, "--status", "queued")
    assert done.exit_code == 0
    assert done.stderr == f"no runs below {tmp_path}\n"


def test_a_job_goes_on_between_two_runs_and_in_its_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Any
) -> None:
    """--watch ended where the first of five runs did, and after `submit --resume`."""
    job = make_job(tmp_path / "results/smoke/20261123T000000Z")
    results = str(job.parents[1])
    make_run(job / "run_0", SUCCESS)

    def statuses() -> list[str]:
        return [row["status"] for row in listed(results)]

    program("squeue", "echo RUNNING")
    assert statuses() == ["queued", "success"]
    program("squeue", "")
    assert statuses() == ["success"]
    with hold(job / ".job.lock"):
        assert statuses() == ["running", "success"]
    program("squeue", "echo RUNNING")
    (job / "exit_code").write_text("0\n")  # its last words
    assert statuses() == ["success"]
    make_run(job / "run_1", STOPPED)
    (job / "exit_code").unlink()  # submitted again
    assert statuses() == ["queued", "stopped", "success"]
    (job / "run_0").rename(tmp_path / "run_0")
    (job / "run_1").rename(tmp_path / "run_1")
    assert statuses() == ["queued"]
    program("squeue", "echo PENDING Priority")
    (row,) = listed(results)
    assert row["reason"] == "slurm job 42 waits: Priority"
    monkeypatch.setenv("COLUMNS", "120")
    assert "waits: Priority" in invoke("runs", results).stdout
    program("squeue", "echo no configuration source >&2; exit 1")
    assert statuses() == ["unknown"]  # which does not keep --watch from ending
    program("squeue", "")  # cancelled before it began
    assert statuses() == ["cancelled"]


class Clock:
    """A stand-in for `time`: a sleep takes none, and the tenth ends what is watched."""

    def __init__(self, end: Callable[[], object]) -> None:
        self.now_s = 0.0
        self.end = end

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        if self.now_s == 10.0:
            self.end()


def test_a_scheduler_is_not_asked_at_every_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Any
) -> None:
    job = make_job(tmp_path / "results/smoke/20261123T000000Z")
    make_run(job / "run_0", STOPPED)
    (job / "exit_code").write_text("143\n")
    running = make_run(tmp_path / "results/smoke/20261122T000000Z", {})
    questions = tmp_path / "asked"
    program("squeue", f"echo >>{questions}")
    with ExitStack() as locks:
        locks.enter_context(hold(running / ".lock"))
        monkeypatch.setattr("rn50.cli.runs.time", Clock(locks.close))
        assert invoke("runs", "--watch", tmp_path / "results").exit_code == 0
    assert len(questions.read_text().splitlines()) == 3


ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_terminal(columns: int, *arguments: str) -> tuple[subprocess.Popen[bytes], int]:
    """`rn50 runs` on a terminal, and the descriptor of what it shows."""
    size = {"COLUMNS": str(columns), "LINES": "24", "TERM": "xterm"}
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [PROGRAM, "runs", *arguments], stdout=follower, env=os.environ | size
    )
    os.close(follower)
    return process, leader


def test_watching_on_a_narrow_terminal_shows_all_that_a_pipe_gets(run: Path) -> None:
    folder = str(run.parents[1])
    for number in range(2):
        make_run(run.with_name("20261121T000000Z") / f"run_{number}", SUCCESS)
    piped = invoke("runs", folder).stdout
    assert invoke("runs", "--watch", folder).stdout == piped
    process, leader = on_terminal(40, "--watch", folder)
    assert process.wait() == 0
    screen = ESCAPES.sub("", read_terminal(leader))
    assert max(map(len, screen.splitlines())) <= 40
    assert not Counter(piped.split()) - Counter(screen.split())


def test_live(run: Path, driver: subprocess.Popen[str]) -> None:
    make_run(run.with_name("20261121T000000Z"), SUCCESS)
    process, leader = on_terminal(120, "--watch", str(run.parents[1]))
    os.set_blocking(leader, False)
    printed = b""

    def text() -> str:
        nonlocal printed
        with suppress(OSError):
            printed += os.read(leader, 1 << 16)
        return ESCAPES.sub("", printed.decode(errors="replace"))

    wait_until(lambda: "0.50/" in text(), 30)
    later = TRAIN | {"step": 150, "epoch": 3.0}
    write_metrics(run, [TRAIN, EVAL, later])
    wait_until(lambda: "3.00/" in text() and "0.5000" in text(), 30)
    write_json(run / "result.json", SUCCESS | {"eval_accuracy": 0.9125})
    driver.communicate("")  # the driver ends

    def has_ended() -> bool:
        text()  # a full terminal would hold it up
        return process.poll() is not None

    wait_until(has_ended, 30)
    lines = text().replace("\r", "\n").splitlines()
    os.close(leader)
    assert process.returncode == 0
    assert max(map(len, lines)) <= 120
    ended = [line for line in lines if "0.9125" in line]
    assert any("success" in line for line in ended)
