"""One driver a run: a second start on its folder is refused, a dead one's is taken over."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from rn50.host.errors import UserError
from rn50.host.lock import LOCK, FolderInUse, hold
from rn50.launch import resume
from rn50.launch.resume import begin_attempt, load_resumed
from rn50.logging.records import Failure, write
from rn50.logging.run_folder import RunFolder
from tests.conftest import logged_keys, write_file, write_json
from tests.faults.matrix import ROOT
from tests.waiting import finished, leave_nothing, rank_process, wait_until

LONG = (
    "smoke",
    "seed=1",
    "schedule.length=40 epochs",
    "eval.period=20",
    "eval.offset=19",
    "eval.target=0.999",
    "log.every=5 steps",
    "checkpoint.every=20 steps",
    "--launcher",
    "gloo",
)


def listed(rn50: Any) -> dict[str, Any]:
    """The one run, as `rn50 runs` lists it."""
    out = rn50.output("runs", str(rn50.results), "--json")
    (row,) = json.loads(out)
    return row


@pytest.mark.nightly
@pytest.mark.slow
def test_a_run_has_one_driver_and_a_killed_one_is_followed(
    rn50: Any, smoke_data: Path
) -> None:
    settings = (f"data.path={smoke_data}", f"system.results={rn50.results}")
    first = rn50.start("launch", *LONG, *settings)
    wait_until(lambda: list(rn50.results.glob("*/*/checkpoint/step_*.ckpt")))
    folder = rn50.run_folder()
    row = listed(rn50)
    assert row["folder"] == str(folder)
    assert row["status"] == "running"
    error = rn50.error("launch", "--resume", str(folder))
    assert error.startswith(f"rn50: error: {folder}: in use by process {first.pid} on ")
    rank = [
        sys.executable,
        "-m",
        "rn50.train",
        str(folder / "config.yaml"),
        "--out",
        str(folder),
    ]
    by_hand = finished([*rank, "system.ranks_per_node=1"], cwd=ROOT)
    assert by_hand.returncode == 2
    assert by_hand.stderr.startswith(f"rn50: error: {folder}: in use")
    assert not list(folder.glob("attempt_*"))

    rank_0 = rank_process(first.pid, 0)
    assert rank_0 is not None
    first.kill()  # -9: the ranks see it by their connections, a little later
    first.communicate()
    assert (folder / LOCK).exists(), "nobody was left to remove it"
    os.utime(folder / LOCK, (0, 0))  # instead of a wait of STALE_S
    resumed = rn50("launch", "--resume", str(folder), "limits.time_s=1", settings[0])
    assert resumed.returncode == 1, resumed.stderr
    assert not rank_0.is_running()
    row = listed(rn50)
    assert row["status"] == "stopped"
    assert row["resumable"]
    keys = logged_keys(folder)
    assert keys.count("run_resumed") == keys.count("run_stop") == 1
    assert not list(folder.glob(".*"))
    leave_nothing(folder)


def test_a_rank_that_outlives_its_launcher_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "RANK_GRACE_S", 0.0)
    message = f"{tmp_path}: in use by process {os.getpid()} on"
    with hold(RunFolder(tmp_path).rank_lock), pytest.raises(FolderInUse, match=message):
        begin_attempt(RunFolder(tmp_path))
    assert not list(tmp_path.iterdir())
    assert begin_attempt(RunFolder(tmp_path)) is None


# --- --resume latest: which run ------------------------------------------------------------------


def a_run(folder: Path, unix_s: int, **result: object) -> Path:
    """What a run leaves, without the bytes: a checkpoint written at `unix_s` and its result."""
    path = write_file(folder / "checkpoint/step_0000000020.ckpt", "no checkpoint")
    os.utime(path, (unix_s, unix_s))
    (folder / "config.yaml").write_text("base: smoke\n")
    write_json(folder / "environment.json", {})
    if result:
        write_json(folder / "result.json", result)
    return folder


@pytest.mark.parametrize(
    ("result", "interrupted"),
    [
        ({}, True),
        ({"status": "failed", "reason": "rank 1 was killed by SIGKILL"}, True),
        (
            {"status": "aborted", "stopped": {"limit": "limits.time_s", "step": 20}},
            True,
        ),
        ({"status": "success"}, False),
        ({"status": "aborted"}, False),  # trained to its last epoch
    ],
)
def test_what_counts_as_interrupted(
    tmp_path: Path, result: dict[str, object], interrupted: bool
) -> None:
    folder = a_run(tmp_path / "run", 1, **result)
    assert RunFolder(folder).is_interrupted == interrupted
    failure = Failure(0, "a", "train", 2, "NaN", retryable=False)
    write(folder / failure.file_name, failure)
    assert not RunFolder(folder).is_interrupted, "it would fail again"


def found(config: str | None, results: Path) -> str:
    """The run that `latest` means: its checkpoint is named, as it is none."""
    with pytest.raises(UserError) as caught:
        load_resumed("latest", config, [f"system.results={results}"], None)
    return str(caught.value)


def test_latest_is_the_newest_interrupted_run_of_the_preset_or_of_all(
    tmp_path: Path,
) -> None:
    old = a_run(tmp_path / "smoke/20260101T000000Z", 100, status="failed")
    a_run(tmp_path / "smoke/20260102T000000Z", 900, status="success")
    in_job = a_run(tmp_path / "smoke/20260103T000000Z/run_1", 200)
    quick_run = a_run(tmp_path / "quick/20260101T000000Z", 300)
    refusal = "/checkpoint: a whole checkpoint expected in it, found none:"
    message = found("smoke", tmp_path)
    assert message.startswith(f"{in_job}{refusal}")
    assert message.endswith(f"; start again with: rn50 launch {in_job}/config.yaml")
    assert found(None, tmp_path).startswith(f"{quick_run}{refusal}")
    with hold(in_job / LOCK):
        assert found("smoke", tmp_path).startswith(f"{old}{refusal}")
        with hold(old / LOCK):
            said = found("smoke", tmp_path)
    assert "with a checkpoint that no process uses expected, found none in" in said
