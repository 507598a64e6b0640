"""One of the random kills of kills.py, and budgets: a run that ends early goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.faults.kills import judge, kill_once, result_of, start
from tests.faults.matrix import BUSY_BOUND_S
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def test_a_killed_rank_costs_time_not_bits(small_data: Path, tmp_path: Path) -> None:
    """kill -9 in training, `--max-restarts 1`."""

    def first_checkpoint(results: Path) -> None:
        wait_until(lambda: list(results.glob("*/*/checkpoint/step_*.ckpt")))

    patience = ("watchdog.silence_s=60", "watchdog.stall_s=300")
    start("gloo", small_data, tmp_path, *patience).communicate(timeout=300)
    kill = kill_once("gloo", small_data, 1, first_checkpoint, *patience)
    assert judge(kill, result_of(tmp_path)["weights_digest"], BUSY_BOUND_S) == []
    assert kill["went_on"].startswith("going on after step ")


@pytest.mark.parametrize(
    ("limit", "words"),
    [("limits.epochs=2", "budget of 2 epochs"), ("limits.time_s=0.5", "time budget")],
)
def test_a_spent_budget_ends_in_order(rn50: Any, smoke_data: Path, limit: str, words: str) -> None:
    done = rn50(
        *("launch", "smoke", "seed=1", "schedule.length=4 epochs", "eval.target=0.999"),
        *("log.every=5 steps", limit, f"data.path={smoke_data}", f"system.results={rn50.results}"),
    )
    assert done.returncode == 1 and "RESULT aborted" in done.stdout, done.stderr
    folder = rn50.run_folder()
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "aborted" and words in result["stopped"]
    step = int(result["stopped"].rpartition(" ")[2])
    assert (folder / "checkpoint" / f"step_{step:010d}.ckpt").is_file()
