"""Interrupted and resumed is uninterrupted, bit for bit: real ranks, real signals."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from rn50.compliance.check_log import check_log
from rn50.config.recorded import RESUME, words_to_repeat
from rn50.data.lock import LOCK, RANK_LOCK
from rn50.logging.parse import read_events
from rn50.logging.records import Next
from tests import mpi
from tests.conftest import ROOT, RUN, Rn50, metrics, read_json
from tests.faults.file_system import refusing
from tests.waiting import finished, leave_nothing, rank_process, wait_until

pytestmark = pytest.mark.slow
LAUNCHERS = ["gloo", *([] if mpi.WHY_NOT else [mpi.LAUNCHER])]


def records(folder: Path) -> list[dict[str, Any]]:
    """What was learned and when, without clocks."""
    kept = ("kind", "step", "epoch", "loss", "lr", "momentum", "correct", "total")
    learned = metrics(folder, "train", "eval")
    return [
        {key: value for key, value in line.items() if key in kept} for line in learned
    ]


def bits(folder: Path) -> tuple[str, float]:
    result = read_json(folder / "result.json")
    return result["weights_digest"], result["eval_accuracy"]


@pytest.fixture(scope="module")
def spent(tmp_path_factory: pytest.TempPathFactory, small_data: Path) -> Path:
    """The folder of a run whose budget ended after three epochs, the last of which has no
    evaluation; for `copied`."""
    rn50 = Rn50(tmp_path_factory.mktemp("spent"))
    words = ("launch", *RUN, "--launcher", LAUNCHERS[-1], "limits.epochs=3")
    done = rn50(*words, f"data.path={small_data}", f"system.results={rn50.results}")
    assert done.returncode == 1, done.stderr
    result = read_json(rn50.run_folder() / "result.json")
    assert result["status"] == "aborted"
    assert result["stopped"]["limit"] == "limits.epochs"
    return rn50.run_folder()


@pytest.fixture
def copied(spent: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(spent, tmp_path / "run"))


def resume(rn50: Any, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = words_to_repeat(folder, RESUME)
    return rn50(
        "launch",
        "--resume",
        str(folder),
        "limits.epochs=null",
        *words,
        *more,
    )


def goes_on_as_if_uninterrupted(
    rn50: Any, folder: Path, whole: Path, *more: str, stopped_step: int = 0
) -> None:
    """`stopped_step`: where the run stopped between two log points. The loss of the next one is
    the mean since then."""
    assert read_events(folder / "result_0.txt")[-1].metadata["status"] == "aborted"
    done = resume(rn50, folder, *more)
    assert done.returncode == 1, done.stderr  # the target is out of reach
    assert bits(folder) == bits(whole)
    found_records = records(folder)
    expected_records = records(whole)
    for of_run in (found_records, expected_records):
        next(record for record in of_run if record["step"] > stopped_step).pop(
            "loss", None
        )
    assert found_records == expected_records
    found = [event.key for event in read_events(folder / "result_0.txt")]
    expected = [event.key for event in read_events(whole / "result_0.txt")]
    assert [key for key in found if key != "run_resumed"] == expected
    assert (folder / "attempt_1" / "interrupted_0.txt").is_file()
    check = check_log(folder / "result_0.txt", "4.0.0", official=False)
    assert "resumed-run" in {finding.name for finding in check.findings}


def stand_still(job: psutil.Process, for_s: float) -> None:
    """`scontrol suspend`, a machine that is suspended: nobody is silent, time is."""
    family = [job, *job.children(recursive=True)]
    for member in family:
        member.suspend()
    time.sleep(for_s)
    for member in family:
        member.resume()


@pytest.mark.parametrize(
    ("launcher", "number", "by", "sign"),
    [
        ("gloo", signal.SIGINT, "Ctrl-C", "step 15/"),
        (LAUNCHERS[-1], signal.SIGTERM, "SIGTERM", "* epoch 2"),
    ],
)
def test_stopped_in_order_and_resumed_is_uninterrupted(
    rn50: Any,
    small_data: Path,
    whole: Path,
    launcher: str,
    number: signal.Signals,
    by: str,
    sign: str,
) -> None:
    """In the first epoch, after it stood still; and after an evaluation. The launcher is told to
    wait a millisecond, the ranks know that their log point takes longer."""
    process = rn50.start(
        "launch",
        *RUN,
        "--launcher",
        launcher,
        "watchdog.silence_s=8",
        "limits.grace_s=0.001",
        f"data.path={small_data}",
        f"system.results={rn50.results}",
    )
    assert any(sign in line for line in process.stdout)
    if by == "Ctrl-C":
        stand_still(psutil.Process(process.pid), 10)
        assert "images/s" in process.stdout.readline()
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "Ctrl-C again ends it without" in err
    folder = rn50.run_folder()
    leave_nothing(folder)
    result = read_json(folder / "result.json")
    assert result["status"] == "aborted"
    assert re.fullmatch(
        rf"stopped by {by} at step (\d+) \(checkpoint of step \1\)", result["reason"]
    )
    again = (
        f"rn50 launch --resume {folder} --launcher {launcher} data.path={small_data}"
    )
    assert result["stopped"]["by"] == by or by == "Ctrl-C"
    onward = Next(**result["next"])
    assert str(onward) == again
    assert err.endswith(f"{again}\n")
    # the same set all the same
    elsewhere = shutil.copytree(small_data, rn50.results / "copy")
    place = ("--launcher", launcher, f"data.path={elsewhere}")
    step = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    stopped_step = result["stopped"]["step"]
    assert step <= stopped_step < step + 5
    goes_on_as_if_uninterrupted(
        rn50,
        folder,
        whole,
        *place,
        stopped_step=stopped_step,
    )


def test_a_killed_rank_costs_time_not_bits(
    rn50: Any, small_data: Path, whole: Path
) -> None:
    """kill -9 in training, `system.job.max_restarts=1`. Nobody waits for the lock of rank 0."""
    process = rn50.start(
        "launch",
        *RUN,
        "--launcher",
        "gloo",
        "system.job.max_restarts=1",
        "watchdog.silence_s=60",
        f"data.path={small_data}",
        f"system.results={rn50.results}",
    )
    wait_until(lambda: list(rn50.results.glob("*/*/checkpoint/step_*.ckpt")))
    rank_process(process.pid, 0).kill()
    out, err = process.communicate(timeout=300)
    assert re.search(r"rank 0 (on .*: |was )killed by SIGKILL", err)
    assert "waiting for" not in err
    assert "going on after step " in out
    assert bits(rn50.run_folder()) == bits(whole)


@pytest.mark.parametrize("stop", [None, signal.SIGTERM])
def test_results_that_turn_read_only_end_the_run_and_mended_it_goes_on(
    rn50: Any, small_data: Path, whole: Path, tmp_path: Path, stop: int | None
) -> None:
    """As ext4 does on an error. Locks cannot be removed; `config.yaml` is on the disk by then."""
    broken = tmp_path / "broken"
    refused = refusing(
        rn50.results, broken, write="EROFS", unlink="EROFS", fsync="EROFS"
    )
    process = rn50.start(
        "launch",
        *RUN,
        "--launcher",
        LAUNCHERS[-1],
        "watchdog.silence_s=60",
        *(["log.every=80 steps"] if stop else []),
        f"data.path={small_data}",
        f"system.results={rn50.results}",
        env=os.environ | refused,
    )
    saved = "*/*/checkpoint/step_*.ckpt"
    wait_until(lambda: process.poll() or list(rn50.results.glob(saved)), 300)
    broken.touch()
    if stop:
        process.send_signal(stop)
    _, err = process.communicate(timeout=120)
    assert process.returncode == (130 if stop else 2), err
    assert (
        "stopped by SIGTERM" in err
        if stop
        else "Read-only file system; details:" in err
    )
    if stop:
        return
    folder = rn50.run_folder()
    for name in (LOCK, RANK_LOCK):
        os.utime(folder / name, (0, 0))  # instead of a wait of STALE_S
    done = resume(rn50, folder)
    assert "going on after step " in done.stdout
    assert bits(folder) == bits(whole)
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_log_that_a_crash_cut_short_has_a_gap_and_another_rank_count_other_bits(
    rn50: Any, copied: Path, whole: Path
) -> None:
    folder = copied
    log = folder / "result_0.txt"
    log.write_bytes(log.read_bytes()[:1500])  # as after the loss of power
    done = resume(
        rn50,
        folder,
        "--ranks",
        "4",
        "--launcher",
        LAUNCHERS[-1],
    )
    assert done.returncode == 1, done.stderr
    assert "it has a gap" in done.stderr
    (resumed,) = (e for e in read_events(log) if e.key == "run_resumed")
    assert (resumed.metadata["ranks"], resumed.metadata["ranks_before"]) == (4, 2)
    assert [r["step"] for r in records(folder)] == [r["step"] for r in records(whole)]
    ours = records(folder)[-2]["loss"]
    theirs = records(whole)[-2]["loss"]
    assert ours != theirs, "batch norm over 5 images, not 10"
    assert abs(ours - theirs) < 0.2, "batch norm over 5 images, not 10"


def test_after_a_bit_flip_the_run_goes_on_from_where_replicas_agreed(
    rn50: Any, small_data: Path, whole: Path
) -> None:
    """Flipped after the evaluation of step 40, found at that of step 80, two checkpoints later."""
    command = [
        sys.executable,
        "-m",
        "tests.faults.job",
        "gloo",
        "bit flip",
        "evaluation",
        "1",
    ]
    settings = [f"data.path={small_data}", f"system.results={rn50.results}"]
    more = ["system.job.max_restarts=1", "watchdog.silence_s=60"]
    done = finished(
        [*command, str(rn50.results / "mark"), *RUN[2:], *settings, *more],
        cwd=ROOT,
    )
    assert done.returncode == 1, done.stderr
    said = r"differ after epoch 4: 1 of 2 ranks, rank 1 on \S+ in weights: a fault of memory"
    assert re.search(said, done.stderr)
    assert "base_lr" not in done.stderr
    assert "going on after step 40 " in done.stdout
    assert bits(rn50.run_folder()) == bits(whole)
