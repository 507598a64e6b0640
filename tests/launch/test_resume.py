"""Going on with a run: nothing of it is lost where that is interrupted, or the disk is full."""

import errno
import json
import re
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from rn50.config.load import load
from rn50.host.lock import LOCK, FolderInUse, hold
from rn50.launch import run as launch_run
from rn50.launch.ending import rank_failed
from rn50.launch.launch_plan import Options
from rn50.launch.resume import begin_attempt, close_attempt, load_resumed
from rn50.launch.run_files import save_config
from rn50.launch.submit import find_interrupted
from rn50.logging.records import LAUNCH, RESUME, Failure, Next, Result, write
from rn50.logging.run_folder import RunFolder
from rn50.train.checkpoint.file import file_name
from rn50.train.checkpoint.folder import chosen_checkpoint
from tests.conftest import Rn50, read_json, refused, write_json
from tests.train.saved import CONFIG, leave_checkpoint

LOADED = load(*CONFIG)
LOG_LINE = "l" * 19 + "\n"
METRICS_LINE = "m" * 9 + "\n"
STARTS = {"result_0.txt": LOG_LINE * 5, "metrics.jsonl": METRICS_LINE * 5}
"""When the checkpoint of step 7 was written."""
TEXT = {name: f"{content}after" for name, content in STARTS.items()}


def texts(run: Path) -> dict[str, str]:
    """What is in the logs of a run."""
    return {name: (run / name).read_text() for name in STARTS}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """An interrupted run: a checkpoint of step 7, and what came after it."""
    checkpoints = tmp_path / "checkpoint"
    checkpoints.mkdir()
    leave_checkpoint(checkpoints)
    for name, content in TEXT.items():
        (tmp_path / name).write_text(content)
    return tmp_path


def goes_on(run: Path) -> None:
    checkpoint = begin_attempt(RunFolder(run))
    assert checkpoint is not None
    assert checkpoint.meta.step == 7
    assert texts(run) == STARTS
    assert not list(run.glob(".*.partial-*"))


def test_what_came_after_the_checkpoint_is_cut_off_and_kept(run: Path) -> None:
    goes_on(run)
    assert (run / "attempt_1" / "interrupted_0.txt").read_text() == TEXT["result_0.txt"]


@pytest.mark.parametrize("failing_call", ["write_bytes", "replace"])
def test_an_interruption_while_the_last_attempt_is_put_aside_loses_nothing(
    run: Path, monkeypatch: pytest.MonkeyPatch, failing_call: str
) -> None:
    """A full disk interrupts it while the log is copied, or before it is cut."""

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, failing_call, fail)
        with refused("cannot keep what the last attempt left: No space"):
            begin_attempt(RunFolder(run))
    assert texts(run) == TEXT
    close_attempt(RunFolder(run))
    goes_on(run)


@pytest.mark.parametrize(
    ("log", "bytes_left"),
    [
        (f"{LOG_LINE}{'l' * 79}", 20),
        (LOG_LINE * 2 + "\0" * 160, 40),
        ("no whole line", 0),
        (
            f'{LOG_LINE}:::MLLOG {{"key": "run_stop"}}\n',
            20,
        ),  # closed by the attempt before
    ],
)
def test_a_log_shorter_than_its_checkpoint_says_ends_nothing(
    run: Path, log: str, bytes_left: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "result_0.txt").write_text(log)
    assert begin_attempt(RunFolder(run)) is not None
    assert (run / "result_0.txt").read_text() == STARTS["result_0.txt"][:bytes_left]
    assert "it has a gap" in capsys.readouterr().err


def test_checkpoints_after_replicas_last_agreed_are_not_taken(run: Path) -> None:
    failure = Failure(1, "h", "evaluate 2", 7, "x", agreed_step=6)
    write(run / failure.file_name, failure)
    assert begin_attempt(RunFolder(run)) is None
    assert not list((run / "checkpoint").iterdir())


def test_what_came_after_replicas_agreed_is_not_scored(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run / "checkpoint"
    for step in (5, 9):
        leave_checkpoint(folder, step)
    assert chosen_checkpoint(run).path.name == file_name(9)
    assert not capsys.readouterr().err
    failure = Failure(1, "h", "evaluate 2", 9, "x", agreed_step=6)
    write(run / failure.file_name, failure)
    assert chosen_checkpoint(run).path.name == file_name(5)
    doubt = rf"{file_name(7)}, {file_name(9)} not trusted, .* after step 6"
    assert re.search(doubt, capsys.readouterr().err)
    chosen_checkpoint(folder / file_name(9))  # named by itself
    assert re.search(doubt, capsys.readouterr().err)
    assert rank_failed("why", run).next == Next(RESUME, str(run))
    for path in (file_name(5), file_name(7)):
        (folder / path).unlink()
    (run / "config.yaml").touch()
    assert rank_failed("why", run).next == Next(LAUNCH, str(run))


@pytest.mark.parametrize(
    ("steps", "hopeless"), [([8], False), ([9, 8], False), ([8, 9, 8], True)]
)
def test_a_loss_that_is_not_finite_since_the_same_step_again_is_hopeless(
    tmp_path: Path, steps: list[int], hopeless: bool
) -> None:
    *earlier, last = steps
    for number, step in enumerate(earlier, 1):
        failure = Failure(0, "h", "epoch 1", 10, "x", not_finite_step=step)
        folder = tmp_path / f"attempt_{number}"
        folder.mkdir()
        write(folder / failure.file_name, failure)
    failure = Failure(1, "h2", "epoch 1", 10, "x", not_finite_step=last)
    write(tmp_path / failure.file_name, failure)
    assert RunFolder(tmp_path).is_hopeless == hopeless


def test_an_error_of_the_launcher_after_the_end_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files", "/proc/1/stat")

    write(tmp_path / "result.json", Result("success"))
    monkeypatch.setattr(launch_run, "begin_run", Mock())
    monkeypatch.setattr(launch_run, "_failure_of_attempt", fail)
    monkeypatch.setattr(launch_run, "judge_path", fail)
    launch_run.run_attempts(Mock(options=Options()), RunFolder(tmp_path), Mock())
    assert launch_run.check_run(LOADED.run, RunFolder(tmp_path)).verdict == "NOT_RUN"
    said = capsys.readouterr().err
    assert said.count("warning: after the last step: ") == 2
    assert "/proc/1/stat: Too many open files" in said


@pytest.mark.slow
def test_a_run_whose_launcher_was_killed_in_its_conclusion_is_concluded(
    rn50: Rn50, uninterrupted: Path, tmp_path: Path
) -> None:
    """Once, as the latest, without its image set and without a checkpoint."""
    run = shutil.copytree(uninterrupted, tmp_path / "smoke/1")
    concluded = read_json(run / "result.json")
    verdicts = dict.fromkeys(("check", "official_checker"))
    write_json(run / "result.json", concluded | verdicts | {"reason": ""})
    (run / "report.html").unlink()
    shutil.rmtree(run / "checkpoint")
    results = f"system.results={tmp_path}"
    done = rn50("launch", "--resume", "latest", results, "--json")
    assert done.returncode == 1, done.stderr  # as its launcher would have ended
    result = read_json(run / "result.json")
    assert json.loads(done.stdout) == result
    assert result["check"] == concluded["check"]
    assert result["weights_digest"] == concluded["weights_digest"]
    assert "missed" in result["reason"]
    assert (run / "report.html").is_file()
    assert "has ended" in rn50.error("launch", "--resume", str(run))


def test_an_empty_config_is_not_one_of_defaults(run: Path) -> None:
    """A crash of the file system may leave one."""
    (run / "config.yaml").write_text("")
    with refused(f"^{run}/config.yaml: settings expected, found none"):
        load_resumed(str(run), None, [], None)


def test_the_folder_of_a_job_is_none_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    (tmp_path / "job.sh").touch()
    with refused(f"found a job's: rn50 submit --resume {tmp_path}"):
        load_resumed(str(tmp_path), None, [], None)


def test_a_driver_that_was_taken_over_touches_nothing(run: Path) -> None:
    with hold(run / LOCK):
        (run / LOCK).write_text("another\nprocess 1 on gpu017")
        files_before = sorted(run.rglob("*"))
        close_attempt(RunFolder(run))
        with pytest.raises(FolderInUse, match="in use by process 1 on gpu017:"):
            begin_attempt(RunFolder(run))
        assert sorted(run.rglob("*")) == files_before
        assert texts(run) == TEXT


@pytest.mark.parametrize(
    "name", [".reserve", LOCK, "metrics.jsonl", "checkpoint", "run_1"]
)
def test_a_foreign_folder_is_not_written_through_its_links(
    run: Path, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    save_config(LOADED, RunFolder(run))
    victim = tmp_path_factory.mktemp("home") / "victim"
    shutil.rmtree(run / name, ignore_errors=True)
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(victim)
    why = f"^{run / name}: no link out of its folder expected"
    with refused(why):
        load_resumed(str(run), None, [], None)
    with refused(why):
        find_interrupted(str(run), None, [])
    assert not victim.exists()
