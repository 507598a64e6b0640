"""kill -9 of a rank of `smoke` at a moment of its run, which goes on by itself, bit for bit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from rn50.train.process_info import read_process_info
from tests.faults.matrix import DEATH_BOUND_S, ROOT, RUN

FAILED = re.compile(r"rank \d+ (on \S+ failed in|was killed)")
COMMAND = (sys.executable, "-m", "rn50.cli.entry", "launch", "smoke", "seed=1", *RUN)


def start(launcher: str, data: Path, results: Path, *more: str) -> subprocess.Popen[str]:
    settings = (f"data.path={data}", f"system.results={results}", "--launcher", launcher)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [*COMMAND, *settings, *more], cwd=ROOT, env=environment, stdout=-1, stderr=-1, text=True
    )


def result_of(results: Path) -> dict[str, Any]:
    return json.loads(next(results.glob("*/*/result.json")).read_text())


def rank_process(parent: int, rank: int) -> psutil.Process | None:
    """The process of a rank below the launcher, once it is there."""
    for child in psutil.Process(parent).children(recursive=True):
        try:
            command, environment = child.cmdline(), child.environ()
        except psutil.Error:
            continue
        found = read_process_info(environment)
        ours = "rn50.train" in command and "python" in Path(command[0]).name
        if ours and found.launcher != "none" and found.rank == rank:
            return child
    return None


def kill_once(
    launcher: str, data: Path, rank: int, wait: Callable[[Path], object], *more: str
) -> dict[str, Any]:
    """Kill `rank` once `wait`, given the folder of results, is over; the run goes on by itself."""
    with tempfile.TemporaryDirectory(prefix="rn50-kill-") as folder:
        process = start(launcher, data, Path(folder), "--max-restarts", "1", *more)
        victim = None
        while victim is None and process.poll() is None:
            victim = rank_process(process.pid, rank)
            time.sleep(0.02)
        assert victim is not None and process.stderr is not None
        wait(Path(folder))
        victim.kill()
        killed_s = time.time()
        message = next((line for line in process.stderr if FAILED.search(line)), "")
        stopped_s = time.time()
        out, _ = process.communicate()
        again = re.search(r"going on after step (\d+)|from the beginning", out)
        return {
            "rank": rank,
            "stop_s": round(stopped_s - killed_s, 2),
            "message": message.strip().partition("; details")[0],
            "went_on": again[0] if again else "",
            "weights_digest": result_of(Path(folder)).get("weights_digest"),
        }


def judge(kill: dict[str, Any], digest: str, bound_s: float = DEATH_BOUND_S) -> list[str]:
    """What is wrong with one kill."""
    bad = []
    if not re.search(rf"rank {kill['rank']} (on .*: |was )killed by SIGKILL", kill["message"]):
        bad.append(f"message: {kill['message']!r}")
    if kill["stop_s"] > bound_s:
        bad.append(f"{kill['stop_s']} s to stop")
    if kill["weights_digest"] != digest:
        bad.append("other bits than the uninterrupted run")
    return bad
