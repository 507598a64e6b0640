"""A rank that is killed, and budgets: a run that ends early goes on where it was."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.faults.kills import rank_process
from tests.faults.matrix import RUN
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def test_a_killed_rank_costs_time_not_bits(rn50: Any, small_data: Path, tmp_path: Path) -> None:
    """kill -9 in training, `system.job.max_restarts=1`."""
    words = ("launch", "smoke", "seed=1", *RUN, f"data.path={small_data}", "--launcher", "gloo")
    words += ("watchdog.silence_s=60", "watchdog.stall_s=300")
    rn50(*words, f"system.results={tmp_path}")
    killed = rn50.start(*words, f"system.results={rn50.results}", "system.job.max_restarts=1")
    wait_until(lambda: list(rn50.results.glob("*/*/checkpoint/step_*.ckpt")))
    rank_process(killed.pid, 1).kill()
    out, err = killed.communicate(timeout=300)
    assert re.search(r"rank 1 (on .*: |was )killed by SIGKILL", err)
    assert "going on after step " in out
    whole, repaired = (
        json.loads(next(folder.glob("*/*/result.json")).read_text())["weights_digest"]
        for folder in (tmp_path, rn50.results)
    )
    assert repaired == whole
