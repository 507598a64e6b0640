"""Going on with a run: nothing of it is lost where that is interrupted, or the disk is full."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.data.lock import LOCK, RANK_LOCK, FolderInUse, hold
from rn50.launch import resume as attempts
from rn50.launch.resume import LOG, METRICS, begin_attempt, close_attempt, load_resumed
from rn50.launch.run import save_config
from rn50.train import checkpoint, checkpoint_folder
from tests.data.test_lock import start_holder
from tests.train.test_checkpoint import CONFIG, arrays, meta

LOADED = load(*CONFIG)
STARTS = {LOG: ("l" * 19 + "\n") * 5, METRICS: ("m" * 9 + "\n") * 5}
"""When the checkpoint of step 7 was written."""
TEXT = {name: text + "after" for name, text in STARTS.items()}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """An interrupted run: a checkpoint of step 7, and what came after it."""
    (tmp_path / "checkpoint").mkdir()
    checkpoint.write(tmp_path / "checkpoint" / checkpoint.file_name(7), meta(), arrays())
    for name, text in TEXT.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def goes_on(run: Path) -> None:
    found = begin_attempt(run)
    assert found is not None and found.meta.step == 7
    assert {name: (run / name).read_text() for name in STARTS} == STARTS
    assert not list(run.glob(".*.partial-*"))


def test_what_came_after_the_checkpoint_is_cut_off_and_kept(run: Path) -> None:
    goes_on(run)
    assert (run / "attempt_1" / "interrupted_0.txt").read_text() == TEXT[LOG]


def test_a_log_that_cannot_be_copied_moves_nothing(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = run / "nowhere" / "file"  # a disk that takes nothing, as far as the copy sees
    with monkeypatch.context() as patch:
        patch.setattr(attempts, "partial_beside", lambda _: nowhere)
        with pytest.raises(UserError, match=r"result_0\.txt: cannot copy: "):
            begin_attempt(run)
    assert {name: (run / name).read_text() for name in TEXT} == TEXT
    assert not list(run.glob("attempt_*"))
    goes_on(run)


def test_a_stop_between_moving_and_copying_back(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = Path.replace

    def stopped(self: Path, target: Path) -> Any:
        if ".partial-" in self.name:
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stopped)
        with pytest.raises(KeyboardInterrupt):
            begin_attempt(run)
    assert not (run / LOG).exists(), "it was moved, and the start of it is not back"
    close_attempt(run)
    goes_on(run)


@pytest.mark.parametrize(
    ("log", "step", "kept"),
    [
        ("l" * 19 + "\n" + "l" * 79, 6, 1),
        (STARTS[LOG][:40] + "\0" * 160, 6, 1),
        ("l" * 10, 7, 0),
    ],
    ids=["cut", "zeros", "no whole line"],
)
def test_a_log_shorter_than_its_checkpoint_says_ends_nothing(
    run: Path, log: str, step: int, kept: int, capsys: pytest.CaptureFixture[str]
) -> None:
    older = meta(6, log_bytes=20, metrics_bytes=10)
    checkpoint.write(run / "checkpoint" / checkpoint.file_name(6), older, arrays())
    (run / LOG).write_text(log)
    found = begin_attempt(run)
    assert found is not None and found.meta.step == step
    assert (run / LOG).read_text() == STARTS[LOG][: 20 * kept]
    assert checkpoint_folder.listed(run / "checkpoint")[-1] == found.path, "later ones do not fit"
    said = capsys.readouterr().err
    assert re.search(r"result_0\.txt: \d+ bytes of whole lines expected", said)
    assert ("and the log has a gap" in said) == (kept == 0)


def test_checkpoints_after_replicas_last_agreed_are_not_taken(run: Path) -> None:
    failure = {"rank": 1, "host": "h", "phase": "evaluate 2", "step": 7, "reason": "x"}
    (run / "failure_1.json").write_text(json.dumps(failure | {"agreed_step": 6}))
    assert begin_attempt(run) is None
    assert not list((run / "checkpoint").iterdir())


def test_a_run_trained_to_its_last_epoch_is_not_resumed(run: Path) -> None:
    save_config(LOADED, run)
    (run / "result.json").write_text('{"status": "aborted"}')
    before = sorted(run.rglob("*"))
    with pytest.raises(UserError, match="has been trained to its last epoch"):
        load_resumed(str(run), None, [], None)
    assert sorted(run.rglob("*")) == before


def test_a_driver_that_was_taken_over_touches_nothing(run: Path) -> None:
    with hold(run / LOCK, run):
        record = run / f"{LOCK}.holder"
        record.write_text(record.read_text().replace(f'"pid": {os.getpid()}', '"pid": 1'))
        before = sorted(run.rglob("*"))
        close_attempt(run)
        with pytest.raises(FolderInUse, match="in use by process 1 "):
            begin_attempt(run)
        assert sorted(run.rglob("*")) == before
        assert {name: (run / name).read_text() for name in TEXT} == TEXT


def test_what_a_killed_rank_0_left_of_its_lock_goes(run: Path) -> None:
    with hold(run / RANK_LOCK, run):
        close_attempt(run)
        assert (run / RANK_LOCK).exists(), "it is alive"
    killed = start_holder(run / RANK_LOCK)
    assert killed.stdout.readline() == "held\n"
    killed.kill()
    killed.wait()
    close_attempt(run)
    assert not (run / RANK_LOCK).exists()
