"""`rn50 train`: a rank without a launcher draws a seed, logs it, and says how it ended."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.logging.parse import read_events
from rn50.train.__main__ import check_ranks
from rn50.train.process_info import ProcessInfo


def test_ranks_by_hand_need_a_seed_in_common() -> None:
    run = load("smoke").run
    check_ranks(run.model_copy(update={"seed": 1}), ProcessInfo("mpirun", 0, 2, 0, "h"))
    with pytest.raises(UserError, match="seed: one for all 2 ranks expected, such as seed=1"):
        check_ranks(run, ProcessInfo("mpirun", 0, 2, 0, "h"))
    with pytest.raises(UserError, match="2 ranks expected, found 1: start them with"):
        check_ranks(run, ProcessInfo("none", 0, 1, 0, "h"))


@pytest.mark.slow
def test_a_seed_is_drawn_and_logged(rn50, smoke_data: Path) -> None:
    """It was the constant 0, and null in the log."""
    done = rn50(
        *("train", "smoke", "system.ranks_per_node=1", "limits.epochs=1", "log.profile=3"),
        *(f"data.path={smoke_data}", f"system.results={rn50.results}"),
    )
    assert done.returncode == 1, done.stderr
    folder = rn50.run_folder()
    logged = [e.value for e in read_events(folder / "result_0.txt") if e.key == "seed"]
    saved = load(folder / "config.yaml").run.seed
    assert logged == [saved] and saved
    result = json.loads((folder / "result.json").read_text())
    assert result["seed"] == saved
    assert done.stdout.splitlines()[-1].startswith(f"{result['reason']}: {folder}; go on with")
    assert (folder / "report.html").is_file()
    assert '"step 13"' in (folder / "timeline.json").read_text()


@pytest.mark.slow
def test_stopped_by_hand_it_goes_on_with_what_it_says(rn50, smoke_data: Path) -> None:
    process = rn50.start(
        *("train", "smoke", "system.ranks_per_node=1", "log.every=5 steps"),
        *(f"data.path={smoke_data}", f"system.results={rn50.results}"),
    )
    assert any("images/s" in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    folder = rn50.run_folder()
    result = json.loads((folder / "result.json").read_text())
    said = r"stopped by Ctrl-C at step (\d+) \(checkpoint of step \1\)"
    assert re.fullmatch(said, result["reason"])
    assert err.splitlines()[-1].startswith(f"rn50: {result['reason']}: {folder}; go on with: ")
    done = rn50(*result["next"].split()[1:], "limits.epochs=2")
    assert done.returncode == 1 and "going on after step" in done.stdout, done.stderr
    resumed = [e for e in read_events(folder / "result_0.txt") if e.key == "run_resumed"]
    assert [event.metadata["steps_repeated"] for event in resumed] == [0]


@pytest.mark.slow
def test_a_failure_by_hand_is_told_last(rn50, smoke_data: Path) -> None:
    done = rn50(
        *("train", "smoke", "system.ranks_per_node=1", "optimizer.base_lr=9.0e9"),
        *(f"data.path={smoke_data}", f"system.results={rn50.results}"),
    )
    assert done.returncode == 3
    last = done.stderr.splitlines()[-1]
    assert re.match("rn50: error: a finite loss expected, found .*: training diverged: ", last)
    assert last.endswith("try a lower optimizer.base_lr or a longer schedule.warmup")
    result = json.loads((rn50.run_folder() / "result.json").read_text())
    assert result["status"] == "failed" and "next" not in result
