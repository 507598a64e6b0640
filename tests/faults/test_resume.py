"""Interrupted and resumed is uninterrupted, bit for bit: real ranks, real signals."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rn50.compliance.check_log import check_log
from rn50.config.recorded import RESUME, words_to_repeat
from rn50.logging.parse import read_events
from rn50.train import checkpoint_folder
from tests import mpi
from tests.conftest import ROOT

pytestmark = pytest.mark.slow
LAUNCHERS = ["gloo", *([] if mpi.WHY_NOT else [mpi.LAUNCHER])]
# Four epochs of 20 steps, evaluated after 2 and 4.
RUN = (
    *("smoke", "seed=1", "schedule.length=4 epochs", "eval.period=2", "eval.offset=1"),
    *("eval.target=0.999", "log.every=5 steps", "checkpoint.every=8 steps"),
)


def records(folder: Path) -> list[dict[str, Any]]:
    """What was learned and when, without clocks."""
    kept = ("kind", "step", "epoch", "loss", "lr", "momentum", "correct", "total")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
    learned = (line for line in lines if line["kind"] in ("train", "eval"))
    return [{key: value for key, value in line.items() if key in kept} for line in learned]


def bits(folder: Path) -> tuple[str, float]:
    result = json.loads((folder / "result.json").read_text())
    return result["weights_digest"], result["eval_accuracy"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, small_data: Path) -> Path:
    """The folder of the run that nobody interrupts; its bits do not depend on the launcher."""
    from tests.conftest import Rn50

    rn50 = Rn50(tmp_path_factory.mktemp("whole"))
    done = rn50("launch", *RUN, f"data.path={small_data}", f"system.results={rn50.results}")
    assert done.returncode == 1, done.stderr  # the target is out of reach
    return rn50.run_folder()


def interrupt(rn50: Any, data: Path, launcher: str, sign: str = "") -> Path:
    """SIGTERM to `rn50 launch` when its output shows `sign`, or the end of a budget of three
    epochs, the last of which has no evaluation; the folder of the run."""
    process = rn50.start(
        *("launch", *RUN, "--launcher", launcher, *(() if sign else ("limits.epochs=3",))),
        *(f"data.path={data}", f"system.results={rn50.results}"),
    )
    for line in process.stdout:
        if sign and sign in line:
            process.send_signal(signal.SIGTERM)
            break
    process.communicate(timeout=120)
    assert process.returncode == (130 if sign else 1)
    return rn50.run_folder()


@pytest.fixture(scope="module")
def spent(tmp_path_factory: pytest.TempPathFactory, small_data: Path) -> Path:
    """The folder of a run whose budget ended after three epochs, for `copied`."""
    from tests.conftest import Rn50

    return interrupt(Rn50(tmp_path_factory.mktemp("spent")), small_data, LAUNCHERS[-1])


@pytest.fixture
def copied(spent: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(spent, tmp_path / "run"))


def resume(rn50: Any, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = words_to_repeat(folder, RESUME)
    return rn50("launch", "--resume", str(folder), "limits.epochs=null", *words, *more)


@pytest.mark.parametrize(
    ("sign", "launcher"),
    [("step 15/", LAUNCHERS[0]), ("* epoch 2", LAUNCHERS[-1]), ("", LAUNCHERS[-1])],
)
def test_resumed_is_uninterrupted(
    rn50: Any, small_data: Path, whole: Path, launcher: str, sign: str
) -> None:
    """In the first epoch, after an evaluation, at the end of an epoch without one."""
    folder = interrupt(rn50, small_data, launcher, sign)
    stopped = json.loads((folder / "result.json").read_text())
    assert stopped["status"] == "aborted"
    assert stopped["stopped"].startswith("asked to stop at step " if sign else "budget of 3 epochs")
    assert read_events(folder / "result_0.txt")[-1].metadata["status"] == "aborted"
    elsewhere = shutil.copytree(small_data, rn50.results / "copy")  # the same set all the same
    done = resume(rn50, folder, "--launcher", launcher, f"data.path={elsewhere}")
    assert done.returncode == 1, done.stderr  # the target is out of reach
    assert bits(folder) == bits(whole)
    assert records(folder) == records(whole)
    events = read_events(folder / "result_0.txt")
    found = [event.key for event in events]
    expected = [event.key for event in read_events(whole / "result_0.txt")]
    assert [key for key in found if key != "run_resumed"] == expected
    assert (folder / "attempt_1" / "interrupted_0.txt").is_file()
    check = check_log(folder / "result_0.txt", "4.0.0", official=False)
    assert "resumed-run" in {finding.name for finding in check.findings}


@pytest.mark.parametrize(
    "overrides",
    [
        # LARS; rank 1 idles in the epoch that is resumed and has a share in the next one.
        (
            *("optimizer.variant=nvidia", "batch.active_ranks=1"),
            "batch.changes=[{after_epoch: 1, per_rank: 10}]",
        ),
        ("optimizer.variant=akiba",),
    ],
    ids=["LARS", "Akiba"],
)
def test_resumed_is_uninterrupted_whatever_the_update(
    rn50: Any, small_data: Path, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    """From the first checkpoint of a run, whose folder is copied without the later ones."""
    done = rn50(
        *("launch", *RUN, *overrides, "schedule.length=2 epochs", "checkpoint.keep=9"),
        *(f"data.path={small_data}", f"system.results={rn50.results}"),
    )
    assert done.returncode == 1, done.stderr
    whole = rn50.run_folder()
    folder = shutil.copytree(whole, tmp_path / "resumed")
    for later in checkpoint_folder.listed(folder / "checkpoint")[1:]:
        later.unlink()
    (folder / "result.json").unlink()  # else it has ended
    done = resume(rn50, folder)
    assert "going on after step" in done.stdout, done.stderr
    assert bits(folder) == bits(whole)
    assert records(folder) == records(whole)


def test_a_torn_checkpoint_and_a_wall_clock_set_back_cost_time_not_bits(
    rn50: Any, copied: Path, whole: Path
) -> None:
    folder = copied
    log = folder / "result_0.txt"
    text = re.sub(r'(?<="time_ms": )\d+', lambda ms: str(int(ms[0]) + 3_600_000), log.read_text())
    log.write_text(text)  # as if the wall clock had been an hour ahead
    last_ms = max(event.time_ms for event in read_events(log))
    newest = checkpoint_folder.listed(folder / "checkpoint")[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    done = resume(rn50, folder, "--launcher", LAUNCHERS[-1])
    assert f"{newest}: torn or damaged" in done.stderr
    assert "rn50: warning: the wall clock is 3" in done.stdout
    assert bits(folder) == bits(whole) and records(folder) == records(whole)
    events = read_events(log)
    resumed = next(event for event in events if event.key == "run_resumed")
    assert resumed.time_ms >= last_ms and events[-1].time_ms < last_ms + 600_000
    stamps = [event.time_ms for event in events]
    assert stamps == sorted(stamps)


def test_a_log_that_a_crash_cut_short_has_a_gap_and_says_so(
    rn50: Any, copied: Path, whole: Path
) -> None:
    folder = copied
    log = folder / "result_0.txt"
    log.write_bytes(log.read_bytes()[:1500])  # as after the loss of power
    done = resume(rn50, folder, "--launcher", LAUNCHERS[-1])
    assert "it has a gap" in done.stderr
    assert bits(folder) == bits(whole)
    found = check_log(log, "4.0.0", official=False).findings
    assert any("bytes of the log before it are lost" in finding.message for finding in found)


def test_after_a_bit_flip_the_run_goes_on_from_where_replicas_agreed(
    rn50: Any, small_data: Path, whole: Path
) -> None:
    """Flipped after the evaluation of step 40, found at that of step 80, two checkpoints later."""
    command = [sys.executable, "-m", "tests.faults.job", "gloo", "bit flip", "evaluation", "1"]
    settings = [f"data.path={small_data}", f"system.results={rn50.results}"]
    more = ["system.job.max_restarts=1", "watchdog.silence_s=60"]
    done = subprocess.run(
        [*command, str(rn50.results / "mark"), *RUN[2:], *settings, *more],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    said = (
        r"replicas differ after epoch 4: 1 of 2 ranks, rank 1 on \S+ in weights: a fault of memory"
    )
    assert re.search(said, done.stderr) and "base_lr" not in done.stderr
    assert "going on after step 40 " in done.stdout
    assert bits(rn50.run_folder()) == bits(whole)


def test_another_rank_count_goes_on_and_says_that_bits_differ(
    rn50: Any, copied: Path, whole: Path
) -> None:
    folder = copied
    done = resume(rn50, folder, "--ranks", "4", "--launcher", LAUNCHERS[-1])
    assert done.returncode == 1, done.stderr
    assert "system.ranks_per_node 2 -> 4" in done.stdout and "bits will differ" in done.stdout
    assert [r["step"] for r in records(folder)] == [r["step"] for r in records(whole)]
    ours, theirs = records(folder)[-2]["loss"], records(whole)[-2]["loss"]
    assert ours != theirs and abs(ours - theirs) < 0.2, "batch norm over 5 images, not 10"


def test_another_config_is_refused(rn50: Any, copied: Path) -> None:
    log = (copied / "result_0.txt").read_bytes()
    done = resume(rn50, copied, "optimizer.base_lr=0.06")
    assert done.returncode == 2
    assert "rn50: error: optimizer.base_lr: 0.05 expected" in done.stderr
    assert (copied / "result_0.txt").read_bytes() == log
