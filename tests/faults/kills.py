"""kill -9 of a random rank at random moments of `smoke`; each run goes on by itself, bit for bit.

python -m tests.faults.kills --launcher mpirun --moments 30 [--save kills.jsonl]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
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
        assert victim is not None
        started_s = time.monotonic()
        wait(Path(folder))
        after_s = time.monotonic() - started_s
        killed_s = 0.0
        stopped_s: list[float] = []

        def read_errors() -> None:
            for line in process.stderr or ():
                lines.append(line)
                if FAILED.search(line):
                    stopped_s.append(time.time())

        lines: list[str] = []
        reader = threading.Thread(target=read_errors)
        reader.start()
        try:
            if victim.status() == psutil.STATUS_ZOMBIE:
                raise psutil.NoSuchProcess(victim.pid)
            victim.kill()
            killed_s = time.time()
        except psutil.NoSuchProcess:
            pass  # it had finished before its moment
        out = process.stdout.read() if process.stdout else ""
        process.wait()
        reader.join()
        said = next((line for line in lines if FAILED.search(line)), "")
        again = re.search(r"going on after step (\d+)|from the beginning", out)
        return {
            "launcher": launcher,
            "rank": rank,
            "killed": killed_s > 0,
            "after_s": round(after_s, 3),
            "stop_s": round(stopped_s[0] - killed_s, 2) if stopped_s and killed_s else None,
            "message": said.strip().partition("; details")[0],
            "went_on": again[0] if again else "",
            "weights_digest": result_of(Path(folder)).get("weights_digest"),
        }


def judge(kill: dict[str, Any], digest: str, bound_s: float = DEATH_BOUND_S) -> list[str]:
    """What is wrong with one kill."""
    bad = []
    if not re.search(rf"rank {kill['rank']} (on .*: |was )killed by SIGKILL", kill["message"]):
        bad.append(f"message: {kill['message']!r}")
    if kill["stop_s"] is None or kill["stop_s"] > bound_s:
        bad.append(f"{kill['stop_s']} s to stop")
    if kill["weights_digest"] != digest:
        bad.append("other bits than the uninterrupted run")
    return bad


def summary(kills: Sequence[dict[str, Any]]) -> str:
    stops = [kill["stop_s"] for kill in kills]
    return (
        f"{len(kills)} kills, stopped after {statistics.median(stops):.2f} s (median), "
        f"{max(stops):.2f} s (longest)"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launcher", choices=("mpirun", "hydra", "gloo"), required=True)
    parser.add_argument("--moments", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=ROOT / "datasets/smoke")
    parser.add_argument("--save", type=Path, help="JSON lines, one a kill; goes on where it ends")
    options = parser.parse_args()
    done: list[dict[str, Any]] = []
    if options.save and options.save.is_file():
        lines = map(json.loads, options.save.read_text().splitlines())
        done = [line for line in lines if line["launcher"] == options.launcher]
    with tempfile.TemporaryDirectory() as folder:
        begin_s = time.monotonic()
        start(options.launcher, options.data, Path(folder)).communicate()
        whole_s, digest = time.monotonic() - begin_s, result_of(Path(folder))["weights_digest"]
    chosen = random.Random(f"{options.seed}:{options.launcher}:{len(done)}")
    bad = 0
    while len(done) + bad < options.moments:
        rank, after_s = chosen.randrange(2), chosen.uniform(0.1, 0.75 * whole_s)
        kill = kill_once(options.launcher, options.data, rank, lambda _, s=after_s: time.sleep(s))
        if kill["killed"] is False:
            continue  # the run had ended before its moment
        problems = judge(kill, digest)
        bad += bool(problems)
        print(kill, problems, flush=True)
        if not problems:
            done.append(kill)
            if options.save:
                with options.save.open("a") as file:
                    file.write(json.dumps(kill) + "\n")
    print(f"{options.launcher}: {summary(done)}; {bad} bad; uninterrupted {whole_s:.1f} s")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
